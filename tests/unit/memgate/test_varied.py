"""What is said about a run whose batches were of different sizes."""

from __future__ import annotations

from dataclasses import replace

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import Replay, replay
from memgate.report import Oom
from memgate.timeline import Alloc, Free
from memgate.timeline_file.recorded import JobMark, JobPhase
from memgate.varied import LENGTHS_VARY, VariedRun, note_lengths
from tests.builders import build_estimate, make_timeline, mib

#: two steps; the second needs more
EVENTS = (Alloc(0, mib(20)), Free(0), Alloc(1, mib(60)), Free(1))
MARKS = (JobMark(0, JobPhase.LOAD), JobMark(0, JobPhase.TRAIN, 0), JobMark(2, JobPhase.TRAIN, 1))
VARIED = VariedRun(
    steps=("length 2", "length 6"),
    numbers=(1, 900),
    smallest="length 2",
    largest="length 6",
    num_batches=2,
    largest_alone=make_timeline(Alloc(0, mib(60)), Free(0)),
)


def _ample() -> Replay:
    return replay(make_timeline(*EVENTS), AllocatorConfig(), 1 << 40)


def test_it_says_which_step_takes_most_and_what_the_longest_alone_takes() -> None:
    """The two figures show what variation costs."""
    said = note_lengths(build_estimate(), VARIED, MARKS, _ample(), "")

    assert said.why(LENGTHS_VARY) == (
        "2 batches were run, from length 2 to length 6: the most, 80.00 MiB, is reserved first in"
        " step 900 (length 6); batches of length 6 alone would reserve 60.00 MiB"
    )


def test_a_job_that_dies_dies_at_a_step() -> None:
    """OOM at step 900: the number in the whole job, and the size of the batch."""
    died = build_estimate(gpu="t4", oom=Oom(event=2, message="out of memory"))

    said = note_lengths(died, VARIED, MARKS, _ample(), "")

    assert said.why(LENGTHS_VARY).endswith("; on t4 it dies in step 900 (length 6)")
    assert said.oom is not None
    assert (said.oom.step, said.oom.batch) == (900, "length 6")


def test_a_job_may_die_before_its_first_step() -> None:
    """A model that does not fit dies while it is loaded: no step is blamed."""
    died = build_estimate(gpu="t4", oom=Oom(event=0, message="out of memory"))
    later = (JobMark(0, JobPhase.LOAD), JobMark(1, JobPhase.TRAIN, 0))

    said = note_lengths(died, VARIED, later, _ample(), "")

    assert said.why(LENGTHS_VARY).endswith("on t4 it dies before the first step")
    assert said.oom is not None
    assert said.oom.step is None


def test_it_says_why_the_longest_alone_is_not_known() -> None:
    """A second run may exceed our limits."""
    unseen = replace(VARIED, largest_alone=None, problem="no time")

    said = note_lengths(build_estimate(), unseen, MARKS, _ample(), "")

    assert "what length 6 alone would take was not seen: no time" in said.why(LENGTHS_VARY)
