"""Runtimes as they are installed, told apart without starting them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate.contract import Work, WorkKind
from memgate.jobspec import parse_job_spec
from memgate_worker.engines import identity
from memgate_worker.engines.identity import identify_engine, identify_engines, identify_work
from memgate_worker.engines.versions import library_versions
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from tests.runtimes import add_library, pretend_installed

NAME = "torch-2.14"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Make what an installed runtime looks like from outside."""
    monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path))
    runtime = read_runtimes()[NAME]
    pretend_installed(runtime)
    add_library(runtime, "torch", "2.14.1")
    return runtime


def _job(runtime: str | None = None) -> Work:
    document = {
        "model": {"source": "torchvision", "name": "vgg16"},
        "input": {"shape": [3, 8, 8]},
        "batch_size": 1,
        "runtime": runtime,
    }
    return Work(kind=WorkKind.FIT, job=parse_job_spec(document))


def test_versions_are_read_off_the_disk(runtime: Runtime) -> None:
    """Of the runtime, not of this process; what is not there is absent."""
    assert library_versions(runtime.site_packages) == {
        "torch": "2.14.1",
        "torchvision": "absent",
        "transformers": "absent",
        "timm": "absent",
    }


def test_whatever_is_installed_changes_the_identity(runtime: Runtime) -> None:
    """A library, the stand-ins, cuDNN in the version that counts; nothing else."""
    seen = [identify_engine(runtime)]
    assert identify_engine(runtime) == seen[0]

    add_library(runtime, "torch", "2.14.2")
    seen.append(identify_engine(runtime))
    (runtime.stubs / "build.sha256").write_text("built anew")
    seen.append(identify_engine(runtime))
    runtime.cudnn_dir.mkdir()
    runtime.cudnn_stamp.write_text("another version")
    assert identify_engine(runtime) == seen[-1]
    runtime.cudnn_stamp.write_text(str(runtime.cudnn))
    seen.append(identify_engine(runtime))

    assert len({identity.digest() for identity in seen}) == 4
    assert [identity.runtime.cudnn for identity in seen] == [None, None, None, runtime.cudnn]


def test_extras_change_the_identity_by_their_versions(runtime: Runtime) -> None:
    """Half of one does too: a job may already see it."""
    seen = [identify_engine(runtime)]
    runtime.extras_dir.mkdir()
    for text in ("\nunfinished\n", "digest\ntrl==1.16.0\n", "digest\ntrl==1.17.0\n"):
        (runtime.extras_dir / "trl").write_text(text)
        seen.append(identify_engine(runtime))

    assert len({identity.digest() for identity in seen}) == 4
    assert seen[0].runtime.extras == ()
    assert seen[2].runtime.extras == (("trl", "trl==1.16.0\n"),)


def test_a_worker_has_what_is_installed(runtime: Runtime) -> None:
    """Each runtime that is built, and the analysis of traces, which needs none."""
    names = [identity.runtime.name for identity in identify_engines()]

    assert names == ["", NAME]


def test_a_question_is_answered_under_the_identity_of_its_runtime(runtime: Runtime) -> None:
    """The default one if it names none; none if it is not installed."""
    trace = Work(kind=WorkKind.ESTIMATE, trace="0" * 64)

    assert identify_work(_job()) == identify_engine(runtime).digest()
    assert identify_work(_job(NAME)) == identify_work(_job())
    assert identify_work(_job("torch-2.6")) == identify_work(_job("torch-9")) == ""
    assert identify_work(trace) == identify_engine().digest() != ""


def test_a_runtime_that_is_being_installed_has_no_versions(runtime: Runtime) -> None:
    """The worker goes on; it announces the runtime again when it is there."""
    (runtime.home / "venv").rename(runtime.home / "gone")

    assert identify_engine(runtime).runtime.versions == ()


def test_versions_are_read_once_as_long_as_the_same_libraries_are_there(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes longer than all else that is read for a question."""
    read: list[Path] = []

    def versions(site_packages: Path) -> dict[str, str]:
        read.append(site_packages)
        return library_versions(site_packages)

    monkeypatch.setattr(identity, "library_versions", versions)

    first = [identify_engine(runtime) for _ in range(3)]
    add_library(runtime, "timm", "1.0.2")
    second = [identify_engine(runtime) for _ in range(3)]

    assert len(read) == 2
    assert len(set(first)) == len(set(second)) == 1
    assert ("timm", "1.0.2") in second[0].runtime.versions
