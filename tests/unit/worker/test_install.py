"""Runtimes are installed whole or not at all, once, and again only if something changed."""

from __future__ import annotations

import json
import multiprocessing
import platform
import shutil
import subprocess
import venv
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError, RuntimeMissingError, StandInsMissingError
from memgate_worker.runtimes import install as installing
from memgate_worker.runtimes import runtime as runtimes
from memgate_worker.runtimes.install import install, remove
from memgate_worker.runtimes.pip import Pip
from memgate_worker.runtimes.runtime import Runtime, RuntimeState, find_runtime, read_runtimes
from memgate_worker.standins.build import STAMP_NAME, BuildError

NAME = "torch-2.14"


class Programs:
    """Stands for pip and the compiler, which would download 1.7 GB and take a minute.

    What they do is in ``tests/packaging/test_wheel.py``, for real.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        #: what the steps of these names raise
        self.fails: dict[str, BaseException] = {}

    @property
    def done(self) -> list[str]:
        """What was asked for, in order, by whichever process."""
        return self._log.read_text().split() if self._log.exists() else []

    def _do(self, step: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{step}\n")
        if step in self.fails:
            raise self.fails[step]

    def create(self, home: Path, **_: object) -> None:
        """Make an environment without anything in it."""
        shutil.rmtree(home, ignore_errors=True)
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").touch()
        (home / "lib" / "python3.11" / "site-packages").mkdir(parents=True)

    def pip(self, pip: Pip, command: str, *arguments: str | Path) -> None:
        """Install packages of which nothing but the name is there, or download cuDNN."""
        self._do(command)
        home = pip.python.parents[2]
        if command == "download":
            wheel = Path(arguments[arguments.index("--dest") + 1]) / "cudnn.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("nvidia/cudnn/lib/libcudnn_graph.so.9", "")
            return
        if "--target" in arguments:
            for name in runtimes.OWN_NEEDS:
                info = home / "own" / f"{name}-99.0.dist-info"
                info.mkdir(parents=True)
                (info / "METADATA").write_text(f"Name: {name}\nVersion: 99.0\n")

    def build(self, _: object, out_dir: Path) -> None:
        """Build the stand-ins."""
        self._do("build")
        out_dir.mkdir()
        (out_dir / STAMP_NAME).write_text("built")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put them in place."""
    made = Programs(tmp_path / "done")
    monkeypatch.setattr(venv, "create", made.create)
    monkeypatch.setattr(Pip, "__call__", lambda *arguments: made.pip(*arguments))
    monkeypatch.setattr(installing, "build", made.build)
    monkeypatch.setattr(installing, "read_torch_build", lambda directory: directory)
    return made


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """Describe a runtime that is not installed."""
    return read_runtimes(tmp_path / "home")[NAME]


#: the steps of an installation: pip three times, the stand-ins
ALL = ["install", "install", "install", "build"]

PIP_FAILED = subprocess.CalledProcessError(
    1, "pip", stderr="WARNING: a mirror is away\nERROR: no such version\n"
)


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

    with pytest.raises(RuntimeMissingError, match=r"takes 1\.63 GiB, and .* has 1024 bytes free"):
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


class TestCommand:
    """``memgate runtimes``."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Install into a folder of the test's own."""
        monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path / "home"))
        return tmp_path / "home"

    @pytest.mark.parametrize("command", [(), ("list",)])
    def test_runtimes_are_listed_with_how_to_get_them(
        self, run: Any, home: Path, command: tuple[str, ...]
    ) -> None:
        """For people with the command that installs one, for programs with the same rows."""
        assert f"install {NAME}: memgate runtimes install {NAME}\n" in run("runtimes", *command).out
        rows = json.loads(run("runtimes", *command, "--json").out)
        row = next(row for row in rows if row["name"] == NAME)
        assert {"name", "installed", "packages", "cudnn"} <= row.keys()
        assert (row["installed"], row["state"], row["cudnn"]) == (False, "absent", None)
        assert row["home"] == str(home / NAME)

    def test_a_runtime_is_installed_and_removed(
        self, run: Any, programs: Programs, home: Path
    ) -> None:
        """Each step is shown, then the time, the size and the place."""
        first = run("runtimes", "install", NAME)
        again = run("runtimes", "install")
        listed = run("runtimes")
        removed = run("runtimes", "remove", NAME)
        gone = run("runtimes", "remove", NAME)

        assert [ran.status for ran in (first, again, listed, removed, gone)] == [0] * 5
        assert f"{NAME}: takes 1.63 GiB in {home / NAME}" in first.err
        assert f"{NAME}: building the stand-ins" in first.err
        assert first.out.startswith(f"{NAME} is ready after 0 s: ")
        assert again.out == f"{NAME} is installed and up to date in {home / NAME}\n"
        assert "yes" in listed.out
        assert f"{NAME} is removed: " in removed.out
        assert gone.out == f"{NAME} is not installed in {home}\n"

    def test_programs_get_json(self, run: Any, programs: Programs) -> None:
        """The row of the list, and what was done; nothing else is printed."""
        ran = run("runtimes", "install", NAME, "--json")

        said = json.loads(ran.out)
        assert said["installed"] is True
        assert said["changed"] is True
        assert said["disk_bytes"] > 0
        assert ran.err == ""

    @pytest.mark.parametrize("command", ["install", "remove"])
    def test_an_unknown_name_is_answered_with_a_near_one(self, run: Any, command: str) -> None:
        """It is the caller's mistake."""
        ran = run("runtimes", command, "torch-2.41")

        assert ran.status == 2
        assert NAME in ran.err

    def test_a_failure_is_one_sentence(self, run: Any, programs: Programs) -> None:
        """And status 1: it is not the caller's."""
        programs.fails = {"install": PIP_FAILED}

        ran = run("runtimes", "install", NAME)

        assert ran.status == 1
        assert "ERROR: no such version" in ran.err
        assert "Traceback" not in ran.err

    def test_the_list_says_what_is_in_each(self, run: Any, programs: Programs, home: Path) -> None:
        """For programs and for people: versions, size, where it comes from."""
        run("runtimes", "install", NAME)
        (home / "lab.toml").write_text(
            'description = "x"\nrequirements = "/jobs/lab.txt"\nrequirements_digest = "0"\n'
        )
        rows = {row["name"]: row for row in json.loads(run("runtimes", "--json").out)}

        ours, lab = rows[NAME], rows["lab"]
        assert (ours["torch"], ours["python"], ours["origin"]) == ("2.14.1", "3.11", "memgate")
        assert ours["stand_ins"] is True
        assert ours["disk_bytes"] > 0
        assert (lab["torch"], lab["state"], lab["origin"]) == (None, "absent", "/jobs/lab.txt")
        assert lab["num_packages"] == 0
        assert "lab comes from /jobs/lab.txt\n" in run("runtimes").out
        assert "lab is removed" in run("runtimes", "remove", "lab").out
        assert not (home / "lab.toml").exists()

    @pytest.mark.parametrize(
        ("arguments", "want"),
        [
            (["--name", "lab"], "--name lab names what --requirements FILE makes"),
            (["lab", "--requirements", "r.txt"], "say --name lab"),
            (["--requirements", "/missing.txt"], "--requirements /missing.txt cannot be read"),
        ],
    )
    def test_names_and_files_are_not_mixed_up(
        self, run: Any, arguments: list[str], want: str
    ) -> None:
        """It is the caller's mistake, and nothing is installed."""
        ran = run("runtimes", "install", *arguments)

        assert ran.status == 2
        assert want in ran.err

    def test_without_a_cudnn_it_says_so(self, run: Any, programs: Programs) -> None:
        """Before anything is downloaded."""
        ran = run("runtimes", "install", "torch-2.6", "--with-cudnn")

        assert ran.status == 2
        assert "names no cuDNN" in ran.err
        assert programs.done == []


def test_the_real_cudnn_counts_once_it_is_complete(programs: Programs, runtime: Runtime) -> None:
    """Its stamp is the last that is written; it is added to what is there."""
    install(runtime)
    install(runtime, with_cudnn=True)

    assert programs.done == [*ALL, "download"]
    assert runtime.has_cudnn
    with pytest.raises(InputError, match="names no cuDNN"):
        install(replace(runtime, cudnn=None), with_cudnn=True)
