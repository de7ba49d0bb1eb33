"""What a run says about its stages and steps -> the marks of a job."""

from __future__ import annotations

from collections.abc import Iterator

from memgate.timeline_file.recorded import JobMark, JobPhase
from memgate_worker.engines.messages import RecordedRun


def mark_stages(run: RecordedRun) -> tuple[JobMark, ...]:
    """Return where stages and steps begin, in the order of events."""
    return tuple(_mark(run))


def without_the_next_step(marks: tuple[JobMark, ...]) -> tuple[JobMark, ...]:
    """Leave out the mark after the last step of a job that has ended: no other step follows."""
    return marks[:-1] if marks and marks[-1].phase is JobPhase.TRAIN and marks[-1].step else marks


def _mark(run: RecordedRun) -> Iterator[JobMark]:
    ends = [(index, None) for index in run.steps]
    step, stage = 0, JobPhase.LOAD
    for index, name in sorted([*run.stages, *ends], key=lambda one: one[0]):
        if name is None:
            step += 1
        else:
            stage = JobPhase(name)
        if name is not None or stage is JobPhase.TRAIN:
            yield JobMark(index, stage, step if stage is JobPhase.TRAIN else None)
