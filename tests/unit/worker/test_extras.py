"""Extras of a runtime: added by name, once, without a change of what is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import Fault, InputError, LibraryMissingError, OperatorError
from memgate_worker.engines.host_client import host_environment
from memgate_worker.jobs.libraries import missing_library, need_library
from memgate_worker.runtimes.extras import Extra, choose_extras, read_extras
from memgate_worker.runtimes.install import install
from memgate_worker.runtimes.requirements import Requirements
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from tests.unit.worker.programs import PIP_FAILED, Programs

NAME = "torch-2.14"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put what installs a runtime in place."""
    return Programs.put_in_place(tmp_path / "done", monkeypatch)


@pytest.fixture
def runtime(tmp_path: Path, programs: Programs) -> Runtime:
    """Install a runtime without extras."""
    return install(read_runtimes(tmp_path / "home")[NAME]).runtime


def _extra(runtime: Runtime, name: str) -> Extra:
    (found,) = (extra for extra in runtime.extras if extra.name == name)
    return found


def _here(runtime: Runtime) -> set[str]:
    return {extra.name for extra in runtime.extras if runtime.has_extra(extra)}


def test_every_extra_of_ours_is_pinned_and_complete() -> None:
    """What it brings decides memory, too; what it is for and takes is shown."""
    for runtime in read_runtimes().values():
        for extra in runtime.extras:
            assert all("==" in package for package in extra.packages)
            assert extra.packages
            assert extra.description
            assert extra.disk_bytes > 0


def test_an_extra_is_added_with_what_it_needs(runtime: Runtime, programs: Programs) -> None:
    """Once; the rest is not installed again."""
    done = len(programs.done)
    first = install(runtime, extras=["liger"])
    again = install(runtime, extras=["liger"])

    assert (first.changed, again.changed) == (True, False)
    assert _here(runtime) == {"liger", "triton"}
    assert programs.done[done:] == ["install", "install"]


def test_pip_is_held_to_what_is_there(runtime: Runtime, programs: Programs) -> None:
    """And must not bring what torch does without here, unless the extra is just that."""
    metadata = runtime.site_packages / "torch-2.14.1.dist-info" / "METADATA"
    needs = "Requires-Dist: nvidia-cublas==13.1\nRequires-Dist: triton~=3.8.0\n"
    metadata.write_text(metadata.read_text() + needs)

    install(runtime, extras=["trl"])
    assert {"torch==2.14.1", "nvidia-cublas<0", "triton<0"} <= {*programs.constraints.split()}
    install(runtime, extras=["triton"])
    lines = {*programs.constraints.split()}
    assert {"nvidia-cublas<0", "trl==1.16.0"} <= lines
    assert "triton<0" not in lines


def test_a_failure_takes_back_what_was_brought(
    runtime: Runtime, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime is as it was, and trying again works."""
    real = programs.pip

    def fail_second(*arguments: Any) -> None:
        real(*arguments)
        if "datasets==5.2.0" in arguments:
            raise PIP_FAILED

    monkeypatch.setattr(programs, "pip", fail_second)
    with pytest.raises(OperatorError, match="ERROR: no such version"):
        install(runtime, extras=["trl"])

    assert not list(runtime.site_packages.glob("trl-*"))
    assert _here(runtime) == set()
    assert not list(runtime.extras_dir.iterdir())
    monkeypatch.undo()


def test_a_runtime_that_is_made_again_keeps_its_extras(
    runtime: Runtime, programs: Programs
) -> None:
    """They were asked for once; a newer memgate does not take them away."""
    install(runtime, extras=["trl"])
    newer = replace(runtime, bare=(*runtime.bare, "peft==1.0"))
    install(newer)

    assert newer.is_installed
    assert _here(newer) == {"trl"}


def test_an_extra_that_is_described_otherwise_is_added_again(
    runtime: Runtime, programs: Programs
) -> None:
    """With other versions of its own; those of the runtime stay."""
    install(runtime, extras=["trl"])
    newer = replace(_extra(runtime, "trl"), bare=("trl==2.0",))
    changed = replace(runtime, extras=(newer,))
    assert not changed.has_extra(newer)
    install(changed)

    assert changed.has_extra(newer)
    lines = {*programs.constraints.split()}
    assert "torch==2.14.1" in lines
    assert "trl==1.16.0" not in lines


def test_extras_do_not_go_into_a_runtime_of_a_jobs_own(
    runtime: Runtime, programs: Programs, tmp_path: Path
) -> None:
    """Its file says what is in it."""
    made = replace(runtime, requirements=Requirements(path=tmp_path / "lab.txt", digest="0"))

    with pytest.raises(InputError, match=r"lab\.txt; add the library to that file"):
        install(made, extras=["trl"])


@pytest.mark.parametrize(
    ("table", "want"),
    [
        ({"a": {"description": "x"}}, "extras.a must say 'modules'"),
        ({"a": {"description": "x", "modules": [], "bear": []}}, "has no field 'bear'"),
        ({"a": {"description": "x", "modules": [], "needs": ["b"]}}, "needs 'b', which is not"),
    ],
)
def test_a_wrong_table_is_named(table: dict[str, Any], want: str) -> None:
    """With the place in the file."""
    with pytest.raises(ValueError, match=want):
        read_extras(table)


def test_two_that_need_each_other_come_together() -> None:
    """In some order, and it ends."""
    common = {"description": "x", "modules": []}
    known = read_extras({"a": {**common, "needs": ["b"]}, "b": {**common, "needs": ["a"]}})

    assert {extra.name for extra in choose_extras(["a"], known)} == {"a", "b"}


def test_a_wrong_table_is_the_operators(tmp_path: Path) -> None:
    """The file is named."""
    text = 'description = "x"\nbare = []\nfull = []\n[extras.a]\ndescription = "x"\n'
    (tmp_path / "lab.toml").write_text(text)

    with pytest.raises(OperatorError, match=r"lab\.toml: not a runtime file: extras\.a must say"):
        read_runtimes(tmp_path)


def test_a_job_that_needs_an_extra_gets_the_command(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the operator's to run; the module's own failures are not taken for that."""
    for name, value in host_environment(runtime).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LibraryMissingError) as raised:
        need_library("liger_kernel.transformers", "liger")

    assert raised.value.fault is Fault.OPERATOR
    assert raised.value.message == (
        "liger needs liger_kernel, which the job's runtime lacks; add it with: memgate runtimes"
        " install torch-2.14 --with liger"
    )


def test_without_an_extra_it_says_what_to_do_instead(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line in the job's requirements, or a runtime that is made from such a file."""
    made = replace(runtime, requirements=Requirements(path=Path("/lab.txt"), digest="0"), extras=())
    monkeypatch.setenv("MEMGATE_RUNTIME", host_environment(made)["MEMGATE_RUNTIME"])
    assert "add trl to the requirements file that runtime" in str(missing_library("trl", "trainer"))
    monkeypatch.delenv("MEMGATE_RUNTIME")
    assert "run the job with another runtime" in str(missing_library("trl", "trainer"))
