"""What workers announce, written, read and put together."""

from __future__ import annotations

import pytest

from memgate.contract import Work, WorkKind
from memgate.errors import HostMemoryError, JobFailedError, MemgateError, TimeLimitError
from memgate.jobspec import parse_job_spec
from memgate.run_key import EngineIdentity, RuntimeIdentity
from memgate_worker.limits import RunLimits
from memgate_worker.queue.announcements import (
    Announcement,
    Served,
    Serving,
    read_announcement,
    write_announcement,
)

LIMITS = RunLimits(memory_bytes=8, seconds=60.0)


def _engine(runtime: str, revision: int = 1) -> EngineIdentity:
    return EngineIdentity(
        version="1",
        revision=revision,
        runtime=RuntimeIdentity(name=runtime, versions=(("torch", "2"),), cudnn="9"),
    )


def _announcement(*engines: EngineIdentity, limits: RunLimits = LIMITS) -> Announcement:
    return Announcement(engines=engines, default_runtime="new", limits=limits)


def _job(runtime: str | None) -> Work:
    document = {
        "model": {"source": "torchvision", "name": "vgg16"},
        "input": {"shape": [3, 8, 8]},
        "batch_size": 1,
        "runtime": runtime,
    }
    return Work(kind=WorkKind.FIT, job=parse_job_spec(document))


def test_an_announcement_is_read_as_it_was_written() -> None:
    """With every version: the service makes keys of runs from it."""
    announcement = _announcement(_engine("new"), _engine(""))

    assert read_announcement(write_announcement(announcement)) == announcement


@pytest.mark.parametrize("written", [None, b"", b"{", b"{}", b'{"engines": [1]}', b"\xff"])
def test_what_cannot_be_read_is_no_announcement(written: bytes | None) -> None:
    """A worker of another version, or of a time before announcements."""
    assert read_announcement(written) is None


def test_a_question_is_served_by_the_workers_that_have_its_runtime() -> None:
    """By name, or the default one; the highest limits count, of those workers alone."""
    serving = Serving(
        [
            _announcement(_engine("new"), _engine("old")),
            _announcement(_engine("new", 2), limits=RunLimits(memory_bytes=16, seconds=5.0)),
            _announcement(_engine(""), limits=RunLimits(memory_bytes=99, seconds=99.0)),
        ]
    )

    by_default = serving.find(_job(None))
    assert by_default == serving.find(_job("new"))
    assert by_default.engines == (_engine("new"), _engine("new", 2))
    assert by_default.limits == RunLimits(memory_bytes=16, seconds=60.0)
    assert serving.find(_job("old")).identities == (_engine("old").digest(),)
    assert serving.find(_job("unheard of")) == Served()
    assert serving.find(Work(kind=WorkKind.ESTIMATE, trace="0")).engines == (_engine(""),)
    assert len(serving.identities) == 4


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (HostMemoryError("much"), {"memory_bytes": 8}),
        (TimeLimitError("long"), {"seconds": 60.0}),
        (JobFailedError("dies"), {}),
    ],
)
def test_a_limit_is_remembered_with_its_value(error: MemgateError, want: dict[str, float]) -> None:
    """So that a higher one tries again."""
    assert LIMITS.exceeded_by(error) == want


@pytest.mark.parametrize(
    ("engines", "want"),
    [
        ([], None),
        ([("old",)], "new"),
        ([("old",), ("old", "new")], None),
    ],
    ids=["no worker", "not among the only one's", "one of two has it"],
)
def test_a_runtime_that_no_worker_has_is_missing(
    engines: list[tuple[str, ...]], want: str | None
) -> None:
    """It is the one for jobs that name none."""
    serving = Serving(_announcement(*map(_engine, names)) for names in engines)

    assert serving.missing_runtime == want
