"""What an engine brings back from a job: its timeline, and how it was obtained."""

from __future__ import annotations

from dataclasses import dataclass

from memgate.measured import Peaks
from memgate.report import Reason
from memgate.timeline import Timeline
from memgate.timeline_file.recorded import JobMark
from memgate.varied import VariedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """A job's timeline, and how it was obtained."""

    timeline: Timeline
    #: the engine that made it, as people name it
    engine: str
    runtime: str
    versions: dict[str, str]
    #: the allocator's settings in the run: a script may have set them itself
    alloc_conf: str
    num_parameters: int
    #: what a caller should know about how far this can be trusted
    notes: tuple[Reason, ...]
    #: why it may be far off: no job is admitted based on it
    doubts: tuple[Reason, ...] = ()
    #: phases of the job and its steps, in the order of events; empty if they were not looked for
    marks: tuple[JobMark, ...] = ()
    #: of GPUs that its PyTorch was built for, such as ``sm_80``; empty if not known
    architectures: tuple[str, ...] = ()
    #: cuDNN was told to try its plans: only those that fit in memory, so the memory counts too
    cudnn_benchmark: bool = False
    #: what the file itself says, if it was recorded on a real GPU
    peaks: Peaks | None = None
    #: what the allocator needs in the other run, if sizes depend on data and that run needs less
    least_segments_bytes: int | None = None
    #: what is known about batches that were not all of one size
    varied: VariedRun | None = None
    #: from the question to the answer
    seconds: float
