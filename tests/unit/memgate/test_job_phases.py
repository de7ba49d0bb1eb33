"""Phases of a whole job, and what is held in each."""

from __future__ import annotations

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.timeline import Alloc, Free, Timeline
from memgate.timeline_file.job_phases import find_phase_peaks, job_phase_spans
from memgate.timeline_file.recorded import JobMark, JobPhase
from memgate.units import MIB
from memgate.verdict import USUAL_CONTEXT_BYTES

MARKS = (
    JobMark(0, JobPhase.LOAD),
    JobMark(1, JobPhase.TRAIN, 0),
    JobMark(2, JobPhase.TRAIN, 1),
    JobMark(3, JobPhase.EVALUATE),
)


def test_phases_of_the_job_are_spans_of_events() -> None:
    """Steps that follow each other are one; phases without events are left out."""
    late = (*MARKS, JobMark(4, JobPhase.SAVE))

    assert list(job_phase_spans(late, 4)) == [
        (JobPhase.LOAD, 0, 1),
        (JobPhase.TRAIN, 1, 3),
        (JobPhase.EVALUATE, 3, 4),
    ]
    assert list(job_phase_spans((), 4)) == []


def test_each_phase_has_the_most_that_is_held_in_it() -> None:
    """What was reserved before it counts, as long as it is; phases that were not seen are left."""
    events = (Alloc(0, 20 * MIB, 0), Alloc(1, 30 * MIB, 0), Free(1), Alloc(2, 40 * MIB, 0))
    ample = MemoryNeeds(Timeline(events=events), parse_alloc_conf("")).ample

    peaks = find_phase_peaks(MARKS, ample)

    reserved = {name: (size - USUAL_CONTEXT_BYTES) // MIB for name, size in peaks.items()}
    assert reserved == {"load": 20, "train": 50, "evaluate": 90}
    assert find_phase_peaks((), ample) == {}
