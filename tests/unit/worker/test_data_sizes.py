"""Two runs of a job whose sizes depend on data become one answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memgate.decision import Decision
from memgate.errors import JobFailedError, NotProtectedError, TimeLimitError
from memgate.gpus import GpuTarget, find_gpu
from memgate.report import Reason
from memgate.timeline import Alloc, Category, Label, Timeline
from memgate_worker.engines.phantom.data_sizes import join_ends
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import RunLimits
from memgate_worker.verdicts import estimate_run
from tests.builders import mib

GPU = find_gpu("rtx-3060")
OTHER = Reason(code="PROFILE_INSTEAD", message="another note")


def _run(size_mib: int) -> TracedJob:
    events = (Alloc(0, mib(size_mib)),)
    return TracedJob(
        timeline=Timeline(events=events, labels=(Label(Category.BATCH, ""),)),
        engine="phantom",
        runtime="torch-2.14",
        versions={},
        alloc_conf="",
        num_parameters=0,
        notes=(OTHER,),
        seconds=0.0,
    )


@pytest.mark.parametrize(("all_mib", "none_mib"), [(2000, 1000), (1000, 2000)])
def test_the_larger_is_the_answer_and_the_range_is_told(all_mib: int, none_mib: int) -> None:
    """Nearly always that is where all elements are found, but it need not be."""
    with_all, with_none = _run(all_mib), _run(none_mib)

    joined = join_ends(with_all, lambda: with_none)

    assert joined.timeline == max(with_all, with_none, key=_size).timeline
    assert joined.least_segments_bytes == mib(1000)
    note, other = joined.notes
    assert other == OTHER
    sizes = {1000: "1000.00 MiB", 2000: "1.95 GiB"}
    want = f"{sizes[all_mib]} with all of them found and {sizes[none_mib]} with none of them found"
    assert want in note.message


def test_ends_that_are_alike_are_told_as_one() -> None:
    """There is no range, and nothing to be uncertain about."""
    joined = join_ends(_run(1000), lambda: _run(1000))

    assert joined.least_segments_bytes is None
    assert joined.notes[0].message.endswith("1000.00 MiB with all or none of them found")


def test_an_end_that_fails_is_told() -> None:
    """The answer is for the end that works."""

    def fail() -> TracedJob:
        raise JobFailedError("division by zero")

    joined = join_ends(_run(1000), fail)

    assert joined.timeline == _run(1000).timeline
    assert joined.notes[0].message.endswith("with none it fails: division by zero")


def test_an_end_that_is_not_run_is_told() -> None:
    """A command whose changes of files are not kept apart is not run again."""

    def refuse() -> TracedJob:
        raise NotProtectedError("its changes of files are not kept apart")

    (note, _) = join_ends(_run(1000), refuse).notes

    assert note.message.endswith(
        "with none it was not seen: its changes of files are not kept apart"
    )


def test_both_runs_share_the_time() -> None:
    """A second run has what the first has left, if that is as much as it took."""
    limits = RunLimits(seconds=60.0)

    assert limits.after(20.0) == RunLimits(seconds=40.0)
    with pytest.raises(TimeLimitError, match=r"the first run took 40\.0 s of the 60 s for both"):
        limits.after(40.0)


@pytest.mark.parametrize(
    ("least_mib", "want_decision", "want_first"),
    [
        (1000, Decision.UNCERTAIN, "SIZES_DEPEND_ON_DATA"),
        (19_000, Decision.REJECT, "DOES_NOT_FIT"),
        (None, Decision.REJECT, "DOES_NOT_FIT"),
    ],
)
def test_a_job_that_may_fit_is_not_rejected(
    least_mib: int | None, want_decision: Decision, want_first: str
) -> None:
    """It is rejected only if it does not fit at either end."""
    least = None if least_mib is None else mib(least_mib)
    note = Reason(code="SIZES_DEPEND_ON_DATA", message="a range")
    traced = replace(_run(20_000), least_segments_bytes=least, notes=(note,))

    said = estimate_run(traced, GpuTarget(gpu=GPU))

    assert said.decision is want_decision
    assert said.reasons[0].code == want_first


def _size(traced: TracedJob) -> int:
    (event,) = traced.timeline.events
    assert isinstance(event, Alloc)
    return event.size_bytes
