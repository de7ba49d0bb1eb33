"""Marks of a whole job -> its phases, and the most memory that is held in each."""

from __future__ import annotations

from collections.abc import Sequence

from memgate.allocator.replay import Replay
from memgate.context import USUAL_CONTEXT_BYTES
from memgate.timeline_file.recorded import JobMark, JobPhase


def find_phase_peaks(
    marks: Sequence[JobMark],
    ample: Replay,
    communication_bytes: int = 0,
    context_bytes: int = USUAL_CONTEXT_BYTES,
) -> dict[str, int]:
    """Return the most that a job has allocated in each of its phases, with the context and NCCL.

    What is reserved would not tell phases apart: what one of them took, the allocator keeps for
    those that follow.
    """
    series = ample.allocated_series
    peaks: dict[JobPhase, int] = {}
    ends = [*(mark.event_index for mark in marks), ample.num_events][1:]
    for mark, end in zip(marks, ends, strict=True):
        # what was allocated when it began, and after each event in it; a phase without any (to save
        # takes no memory of a GPU) holds what was there
        held = series[max(0, mark.event_index - 1) : end]
        if held:
            most = max(held) + context_bytes + communication_bytes
            peaks[mark.phase] = max(most, peaks.get(mark.phase, 0))
    return {phase.value: peaks[phase] for phase in JobPhase if phase in peaks}
