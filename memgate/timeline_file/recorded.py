"""What a timeline file says: what a job did on a phantom GPU, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from memgate.gpus import GpuSpec
from memgate.margins import Family
from memgate.nccl import NO_COMMUNICATION, NcclUse
from memgate.report import Reason
from memgate.run_key import GpuTraits
from memgate.timeline import Timeline
from memgate.workspaces import NO_WORKSPACES, WorkspaceRange

#: the engines whose runs can be in a file
RecordingEngine = Literal["phantom", "profile"]


class JobPhase(StrEnum):
    """Parts of a whole job; a ``Phase`` is a part of one iteration."""

    #: until the first training step or evaluation
    LOAD = "load"
    TRAIN = "train"
    EVALUATE = "evaluate"
    #: writing a checkpoint
    SAVE = "save"


class JobMark(NamedTuple):
    """From an event on, the job is in a phase."""

    #: may be the number of events, for what began after the last one
    event_index: int
    phase: JobPhase
    #: of training: which optimizer step begins here, counted from 0
    step: int | None = None


class BatchShape(NamedTuple):
    """A tensor that the job took batches in."""

    #: of the argument, or where it is in the batch
    name: str
    shape: tuple[int, ...]
    dtype: str
    #: how many had this shape
    num_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGpu:
    """The GPU that a job was recorded for."""

    name: str
    memory_bytes: int
    #: what of it the events depend on
    traits: GpuTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTimeline:
    """A job as it was recorded; the content of a timeline file."""

    #: without residents: a recording begins with the program
    timeline: Timeline
    engine: RecordingEngine
    #: what was run, word by word; empty if it was a job spec
    command: tuple[str, ...]
    gpu: RecordedGpu
    #: of Python and of libraries, by name
    versions: Mapping[str, str]
    #: the version of the cuDNN that chose plans; None if there was none
    cudnn: str | None
    #: the allocator's settings in the run
    alloc_conf: str
    num_parameters: int
    #: of GPUs that the job's PyTorch was built for, such as ``sm_80``; empty if not known
    architectures: tuple[str, ...] = ()
    #: in the order of events
    marks: tuple[JobMark, ...] = ()
    batches: tuple[BatchShape, ...] = ()
    #: what a caller should know about the recording
    notes: tuple[Reason, ...] = ()
    #: why it may be far off: no job is admitted based on it
    doubts: tuple[Reason, ...] = ()
    #: what the allocator needs with other data, if sizes depend on data and that is less
    least_segments_bytes: int | None = None
    #: what its margin was measured on
    family: Family = Family.UNKNOWN
    #: what workspaces of cuDNN that are not known may change
    workspaces: WorkspaceRange = NO_WORKSPACES
    #: of a job of several processes: which of them this is, and how many there are
    rank: int = 0
    world_size: int = 1
    #: others of them that were recorded, each with a timeline of its own
    other_ranks: tuple[RecordedTimeline, ...] = ()
    #: what the job uses NCCL for
    communication: NcclUse = NO_COMMUNICATION
    #: of the memgate that recorded it
    memgate_version: str
    #: its ``ENGINE_REVISION``
    engine_revision: int
    #: of the file's format; a file that is written has the newest
    format_version: tuple[int, int] = field(default=(1, 3), compare=False)

    def __post_init__(self) -> None:
        assert not self.timeline.residents, "a recording begins with the program"

    @property
    def ranks(self) -> tuple[RecordedTimeline, ...]:
        """Every process of the job that was recorded, this one first."""
        return (self, *self.other_ranks)

    @property
    def runtime(self) -> str:
        """The libraries that decide about memory, in a few words."""
        return name_libraries(self.versions, self.cudnn)

    def is_exact_for(self, gpu: GpuSpec) -> bool:
        """Say whether the job would do the same on a GPU: a replay is then exact."""
        return self.gpu.traits.match(gpu)


def name_libraries(versions: Mapping[str, str], cudnn: str | None) -> str:
    """Name the libraries that decide about memory, in a few words."""
    torch = versions.get("torch", "of an unknown version")
    return f"torch {torch}, {f'cuDNN {cudnn}' if cudnn else 'no cuDNN'}"
