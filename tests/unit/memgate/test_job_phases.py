"""Phases of a whole job, and what is held in each."""

from __future__ import annotations

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.context import USUAL_CONTEXT_BYTES
from memgate.timeline import Alloc, Free, Timeline
from memgate.timeline_file.job_phases import find_phase_peaks
from memgate.timeline_file.recorded import JobMark, JobPhase
from memgate.units import MIB

MARKS = (
    JobMark(0, JobPhase.LOAD),
    JobMark(1, JobPhase.TRAIN, 0),
    JobMark(2, JobPhase.TRAIN, 1),
    JobMark(3, JobPhase.EVALUATE),
)


def test_each_phase_has_the_most_that_is_held_in_it() -> None:
    """What was allocated before counts, as long as it is; not what is only cached."""
    events = (Alloc(0, 20 * MIB, 0), Alloc(1, 60 * MIB, 0), Free(1), Alloc(2, 40 * MIB, 0))
    ample = MemoryNeeds(Timeline(events=events), parse_alloc_conf("")).ample

    peaks = find_phase_peaks(MARKS, ample)

    allocated = {name: (size - USUAL_CONTEXT_BYTES) // MIB for name, size in peaks.items()}
    assert allocated == {"load": 20, "train": 80, "evaluate": 60}
    assert find_phase_peaks((), ample) == {}


def test_a_phase_without_events_holds_what_was_there() -> None:
    """To save takes no memory of a GPU; a job that loads nothing has not loaded."""
    events = (Alloc(0, 20 * MIB, 0), Alloc(1, 60 * MIB, 0))
    ample = MemoryNeeds(Timeline(events=events), parse_alloc_conf("")).ample
    marks = (
        JobMark(0, JobPhase.LOAD),
        JobMark(0, JobPhase.TRAIN, 0),
        JobMark(1, JobPhase.SAVE),
        JobMark(1, JobPhase.TRAIN, 1),
    )

    peaks = find_phase_peaks(marks, ample)

    allocated = {name: (size - USUAL_CONTEXT_BYTES) // MIB for name, size in peaks.items()}
    assert allocated == {"train": 80, "save": 20}
