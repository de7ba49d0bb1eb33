"""Runtimes are installed whole or not at all, once, and again only if something changed."""

from __future__ import annotations

import multiprocessing
import platform
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memgate.errors import InputError, RuntimeMissingError, StandInsMissingError
from memgate_worker.runtimes import runtime as runtimes
from memgate_worker.runtimes.install import install, remove
from memgate_worker.runtimes.runtime import Runtime, RuntimeState, find_runtime, read_runtimes
from memgate_worker.standins.build import STAMP_NAME, BuildError
from tests.unit.worker.programs import PIP_FAILED, Programs

NAME = "torch-2.14"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put them in place."""
    return Programs.put_in_place(tmp_path / "done", monkeypatch)


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """Describe a runtime that is not installed."""
    return read_runtimes(tmp_path / "home")[NAME]


#: the steps of an installation: pip three times, the stand-ins
ALL = ["install", "install", "install", "build"]


def test_what_is_installed_is_not_installed_again(programs: Programs, runtime: Runtime) -> None:
    """Safe to run twice; and it is found afterwards."""
    assert runtime.state is RuntimeState.ABSENT
    first = install(runtime)
    second = install(runtime)

    assert (first.changed, second.changed) == (True, False)
    assert programs.done == ALL
    assert find_runtime(NAME, runtime.home.parent) == runtime


def test_steps_are_reported(programs: Programs, runtime: Runtime) -> None:
    """A person sees what takes so long."""
    said: list[str] = []

    install(runtime, report=said.append)

    assert said[0].startswith("installing torch==2.14.1, torchvision==")
    assert said[-1] == "building the stand-ins for NVIDIA's libraries"


def test_two_at_once_install_it_once(programs: Programs, runtime: Runtime) -> None:
    """The second waits for the first, and finds everything there."""
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=install, args=(runtime,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)

    assert [process.exitcode for process in both] == [0, 0]
    assert programs.done == ALL
    assert runtime.is_installed


def test_a_failure_leaves_nothing_half_installed(programs: Programs, runtime: Runtime) -> None:
    """GIVEN pip fails in the middle, THEN it says why, the space is free, and again it works."""
    programs.fails = {"install": PIP_FAILED}
    with pytest.raises(RuntimeMissingError, match=r"was not installed: ERROR: no such version$"):
        install(runtime)

    assert runtime.state is RuntimeState.ABSENT
    assert not runtime.venv.exists()
    programs.fails = {}
    assert install(runtime).changed
    assert runtime.is_installed


def test_an_interrupted_installation_is_none(
    programs: Programs, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, without a chance to clean up: it does not count as installed, and is made anew."""
    programs.fails = {"install": KeyboardInterrupt()}
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        install(runtime)
    monkeypatch.undo()

    assert runtime.state is RuntimeState.UNFINISHED
    with pytest.raises(RuntimeMissingError, match="is not installed completely; install it again"):
        find_runtime(NAME, runtime.home.parent)


def test_a_compiler_that_fails_is_quoted(programs: Programs, runtime: Runtime) -> None:
    """The libraries stay: only the stand-ins are built again."""
    programs.fails = {"build": BuildError("g++ -std=c++17 ... failed:\nno such header")}
    with pytest.raises(RuntimeMissingError, match="no such header"):
        install(runtime)

    assert not runtime.is_installed
    programs.fails = {}
    install(runtime)
    assert programs.done == [*ALL, "build"]


def _other_sources(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Runtime:
    monkeypatch.setattr(runtimes, "sources_digest", lambda: "0" * 64)
    return runtime


def _other_definition(_: pytest.MonkeyPatch, runtime: Runtime) -> Runtime:
    return replace(runtime, bare=(*runtime.bare, "peft==1.0"))


@pytest.mark.parametrize(
    ("change", "want_done"), [(_other_sources, ["build"]), (_other_definition, ALL)]
)
def test_what_another_version_installed_is_brought_up_to_date(
    programs: Programs,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, Runtime], Runtime],
    want_done: list[str],
) -> None:
    """It is not used as it is, the message says what to do, and only what changed is redone."""
    install(runtime)
    changed = change(monkeypatch, runtime)
    assert changed.state is RuntimeState.OUTDATED
    problem = runtimes.why_not_usable(changed)
    assert problem == (
        f"runtime {NAME!r} was installed by another version of memgate; bring it up to date with:"
        f" memgate runtimes install {NAME}"
    )

    install(changed)

    assert programs.done == ALL + want_done
    assert changed.is_installed


def test_the_stand_ins_of_an_older_version_stay(
    programs: Programs, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a cluster is upgraded, workers of both versions run."""
    install(runtime)
    older = runtime.stubs
    install(_other_sources(monkeypatch, runtime))

    assert runtime.stubs != older
    assert (older / STAMP_NAME).is_file()


def test_libraries_that_memgate_needs_are_looked_for(programs: Programs, runtime: Runtime) -> None:
    """A newer memgate may need one more of them."""
    install(runtime)
    shutil.rmtree(runtime.own / "psutil-99.0.dist-info")

    assert runtime.state is RuntimeState.OUTDATED


def test_a_runtime_whose_python_is_gone_is_none(programs: Programs, runtime: Runtime) -> None:
    """Its environment points to the interpreter that made it."""
    install(runtime)
    runtime.python.unlink()

    assert runtime.state is RuntimeState.UNFINISHED
    install(runtime)
    assert runtime.is_installed


def test_what_is_removed_is_gone(programs: Programs, runtime: Runtime) -> None:
    """All of it; and to remove it again does nothing."""
    install(runtime)
    (runtime.venv / "large").write_bytes(b"x" * 100_000)

    assert remove(runtime) >= 100_000
    assert not runtime.home.exists()
    assert remove(runtime) == 0


def test_a_full_disk_is_seen_before_anything_is_downloaded(
    programs: Programs, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how much it takes, where, and what to do."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**30, 2**30, 1024))

    with pytest.raises(RuntimeMissingError, match=r"takes 1\.97 GiB, and .* has 1024 bytes free"):
        install(runtime)

    assert programs.done == []


def test_a_missing_compiler_is_seen_before_anything_is_downloaded(
    programs: Programs, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the package that has it."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CXX", raising=False)

    wanted = r"'torch-2\.14' was not installed: .* no C\+\+ compiler; .*apt install g\+\+"
    with pytest.raises(StandInsMissingError, match=wanted):
        install(runtime)

    assert programs.done == []


def test_on_another_platform_nothing_is_tried(
    programs: Programs, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what works there."""
    monkeypatch.setattr(platform, "machine", lambda: "arm64")

    with pytest.raises(RuntimeMissingError, match="memgate analyze"):
        install(runtime)


def test_the_real_cudnn_counts_once_it_is_complete(programs: Programs, runtime: Runtime) -> None:
    """Its stamp is the last that is written; it is added to what is there."""
    install(runtime)
    install(runtime, with_cudnn=True)

    assert programs.done == [*ALL, "download"]
    assert runtime.has_cudnn
    with pytest.raises(InputError, match="names no cuDNN"):
        install(replace(runtime, cudnn=None), with_cudnn=True)
