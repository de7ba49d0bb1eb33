"""Marks of a whole job -> its phases, and the most memory that is held in each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from memgate.allocator.replay import Replay
from memgate.timeline_file.recorded import JobMark, JobPhase
from memgate.verdict import USUAL_CONTEXT_BYTES


def job_phase_spans(
    marks: Sequence[JobMark], num_events: int
) -> Iterator[tuple[JobPhase, int, int]]:
    """Yield the phases of a job, each with its first event and the one after its last.

    Training steps that follow each other are one span.
    """
    begin, current = 0, None
    for index, phase, _ in (*marks, (num_events, None, None)):
        if phase is current:
            continue
        if current is not None and begin < index:
            yield current, begin, index
        begin, current = index, phase


def find_phase_peaks(marks: Sequence[JobMark], ample: Replay) -> dict[str, int]:
    """Return the most that is held in each phase of a job that was seen, with the context."""
    changes = ample.reserved_changes
    indices = [change.event_index for change in changes]
    peaks: dict[JobPhase, int] = {}
    for phase, begin, end in job_phase_spans(marks, ample.num_events):
        # what was reserved when it began, and every change in it
        first, last = max(0, bisect_right(indices, begin) - 1), bisect_left(indices, end)
        most = max((change.reserved_bytes for change in changes[first:last]), default=0)
        peaks[phase] = max(most + USUAL_CONTEXT_BYTES, peaks.get(phase, 0))
    return {phase.value: peaks[phase] for phase in JobPhase if phase in peaks}
