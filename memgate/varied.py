"""A run whose batches were of different sizes -> what to say about it.

Which step takes most, what batches of the largest size alone would take, and, where a job dies, at
which step and of what size its batch was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay
from memgate.capacity import MemoryNeeds
from memgate.report import Estimate, Reason
from memgate.timeline import Timeline
from memgate.timeline_file.recorded import JobMark
from memgate.units import format_size

#: the note on every such answer
LENGTHS_VARY = "LENGTHS_VARY"
#: the doubt, if some batches were not run
BATCHES_LEFT_OUT = "BATCHES_LEFT_OUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedRun:
    """What is known about a run whose batches were of different sizes."""

    #: of each step, how large its batches were
    steps: tuple[str, ...]
    #: of each step, which one of the whole job it is, counted from 1
    numbers: tuple[int, ...]
    smallest: str
    largest: str
    #: that were run
    num_batches: int
    #: with batches of the largest size alone; None if they could not be run
    largest_alone: Timeline | None
    #: why they could not
    problem: str = ""


def note_lengths(
    said: Estimate,
    varied: VariedRun,
    marks: Sequence[JobMark],
    ample: Replay,
    alloc_conf: str,
) -> Estimate:
    """Add to an answer what the sizes of batches did to it."""
    peak = ample.peak_reserved_bytes
    peak_event = next(at for at, reserved in ample.reserved_changes if reserved == peak)
    step = _find_step(marks, peak_event)
    message = (
        f"{varied.num_batches:,} batches were run, from {varied.smallest} to {varied.largest}:"
        f" the most, {format_size(peak)}, is reserved first {_name(varied, step)};"
        f" {_describe_alone(varied, alloc_conf)}"
    )
    update: dict[str, object] = {}
    if said.oom is not None:
        died = _find_step(marks, said.oom.event)
        message += f"; on {said.gpu} it dies {_name(varied, died)}"
        if died is not None:
            where = {"step": varied.numbers[died], "batch": varied.steps[died]}
            update["oom"] = said.oom.model_copy(update=where)
    note = Reason(code=LENGTHS_VARY, message=message)
    return said.model_copy(update=update | {"reasons": [*said.reasons, note]})


def _describe_alone(varied: VariedRun, alloc_conf: str) -> str:
    if varied.largest_alone is None:
        return f"what {varied.largest} alone would take was not seen: {varied.problem}"
    alone = MemoryNeeds(varied.largest_alone, parse_alloc_conf(alloc_conf)).ample
    size = format_size(alone.peak_reserved_bytes)
    return f"batches of {varied.largest} alone would reserve {size}"


def _find_step(marks: Sequence[JobMark], event: int) -> int | None:
    """Return the step that an event belongs to; None before the first."""
    steps = [mark for mark in marks if mark.step is not None]
    at = bisect_right([mark.event_index for mark in steps], event) - 1
    return None if at < 0 else steps[at].step


def _name(varied: VariedRun, step: int | None) -> str:
    if step is None:
        return "before the first step"
    return f"in step {varied.numbers[step]:,} ({varied.steps[step]})"
