"""What an engine brings back from a job: its timeline, and how it was obtained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from memgate.margins import Family
from memgate.measured import Peaks
from memgate.nccl import NO_COMMUNICATION, NcclUse
from memgate.report import Reason
from memgate.timeline import Timeline
from memgate.timeline_file.recorded import JobMark
from memgate.varied import VariedRun
from memgate.workspaces import NO_WORKSPACES, WorkspaceRange


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
    #: what its margin was measured on; unknown where nothing tells
    family: Family = Family.UNKNOWN
    #: what cuDNN's workspaces may change of what the allocator needs, where they are not known
    workspaces: WorkspaceRange = NO_WORKSPACES
    #: what the allocator needs in the other run, if sizes depend on data and that run needs less
    least_segments_bytes: int | None = None
    #: what is known about batches that were not all of one size
    varied: VariedRun | None = None
    #: of a distributed job: which of its processes this is, and how many there are
    rank: int = 0
    world_size: int = 1
    #: bytes that it exchanges with the others in a training step, by kind
    traffic: dict[str, int] = field(default_factory=dict)
    #: ranks that are given something else than this one, as it has found out itself
    unlike_ranks: tuple[int, ...] = ()
    #: the other ranks that were run, each with a timeline of its own
    other_ranks: tuple[TracedJob, ...] = ()
    #: what this process uses NCCL for
    communication: NcclUse = NO_COMMUNICATION
    #: from the question to the answer
    seconds: float

    @property
    def ranks(self) -> tuple[TracedJob, ...]:
        """Every process of the job that was run, this one first."""
        return (self, *self.other_ranks)

    def of_every_rank(self, change: Callable[[TracedJob], TracedJob]) -> TracedJob:
        """Return the job with the same change made to each of its ranks."""
        return replace(change(self), other_ranks=tuple(map(change, self.other_ranks)))

    def again(self, alloc_conf: str) -> TracedJob:
        """Return the run for a question with other settings of the allocator: nothing is run."""
        return self.of_every_rank(lambda one: replace(one, alloc_conf=alloc_conf, seconds=0.0))

    def led_by(self, rank: int) -> TracedJob:
        """Return the same job with one of its ranks in the first place."""
        alone = [replace(one, other_ranks=()) for one in self.ranks]
        first, *others = sorted(alone, key=lambda one: (one.rank != rank, one.rank))
        return replace(first, other_ranks=tuple(others))
