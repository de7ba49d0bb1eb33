"""What ``memgate_hook`` wrote down -> what the job asked of the allocator, and what it was doing.

The hook runs in the job's own process, with the job's own Python and without memgate. So it writes
plain values, and they are read here as strictly as anything else that comes from outside.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgspec

from memgate.errors import ProcessLostError
from memgate.timeline import SetFraction
from memgate.workspaces import PossibleWorkspace
from memgate_worker.engines.messages import RecordedRun, SeenRanks, WorkAreas
from memgate_worker.engines.phantom.communication import find_communication
from memgate_worker.engines.phantom.labels import blocks_seen_as, label_blocks, locate_phases
from memgate_worker.engines.phantom.tracker import read_rows, to_events
from memgate_worker.hook.memgate_hook.marks import (
    LayerMark,
    PhaseMark,
    StageMark,
    StepMark,
    TensorMark,
)


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """What a job raised, and where."""

    kind: str
    message: str
    #: as Python prints it
    last_line: str
    #: the module that could not be imported
    module: str | None = None
    #: the last of them: file, line, function, source line
    frames: list[tuple[str, int | None, str, str | None]] = []


class SeenTensor(NamedTuple):
    """A tensor that a module was called with."""

    name: str
    dtype: str
    shape: tuple[int, ...]


#: the tensors of each call in a step, and how often steps had them
SeenShapes = tuple[list[list[SeenTensor]], int]


class SeenLongest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the longest batch that was asked for; see ``memgate_hook.longest``."""

    #: None: that of the data set's longest samples
    length: int | None
    is_run: bool
    #: some dimensions vary on their own, and were made longer in proportion
    in_proportion: bool
    #: a batch was longer than that
    longer: int | None
    #: why it was not run, if that is known
    problem: str


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A recording without the tracker's rows; the fields are those of ``Recording.describe``."""

    phases: list[PhaseMark]
    layers: list[LayerMark]
    tensors: list[TensorMark]
    workspaces: list[TensorMark]
    #: that cuDNN may have wanted: the position, the bytes, and 1 in a forward pass
    possible_workspaces: list[tuple[int, int, int]] = []
    #: rows between which DDP allocated its buckets
    buckets: list[tuple[int, int]] = []
    #: the largest of each kind; see ``engines.phantom.work_areas``
    work_areas: WorkAreas = WorkAreas()
    fractions: list[tuple[int, float]]
    stages: list[StageMark]
    steps: list[StepMark]
    shapes: list[SeenShapes]
    num_steps: int
    has_evaluated: bool
    #: samples in a batch of a loader that shuffles and was not used; 0: none has more than seen
    larger_loader: int = 0
    #: an optimizer has made no step
    has_idle_optimizer: bool = False
    #: in whose later turns the job trains again, with another optimizer; empty: there is none
    training_loop: str = ""
    memory_stats: dict[str, int]
    #: the device that it works on, which the rest is about
    own_device: int = 0
    #: that the driver had handed out at once, to whomever
    device_peak_bytes: int = 0
    alloc_conf: str
    num_parameters: int
    num_data_sized_results: int
    cudnn_benchmark: bool
    #: the real cuDNN crashed while it was asked
    is_cudnn_lost: bool = False
    #: rows tell private pools apart
    knows_pools: bool = True
    #: of NCCL, and the variables that it reads
    num_communicators: int = 0
    nccl_variables: dict[str, str] = {}
    #: None: there is only one
    ranks: SeenRanks | None = None
    #: that were used besides its own, and the most bytes that were allocated there
    other_devices: list[tuple[int, int]] = []
    unmodelled: list[str]
    versions: dict[str, str]
    architectures: list[str]
    seconds: float
    #: why it ends here: ``end``, ``steps``, ``evaluation`` or ``time``
    why: str = "end"
    notes: list[str] = []
    #: that the job asked for
    exit_status: int = 0
    longest: SeenLongest | None = None
    #: of a process with a stage of a pipeline: the ranks of all stages
    pipeline: list[int] = []


def read_recording(data: bytes) -> tuple[Description, bytes]:
    """Read a recording's file: a line of JSON, and the tracker's rows.

    Raises:
        ProcessLostError: if it is not whole: its process was ended while it wrote.
    """
    line, _, rows = data.partition(b"\n")
    try:
        return msgspec.json.decode(line, type=Description), rows
    except msgspec.DecodeError as error:
        raise ProcessLostError(f"the job's recording is broken: {error}; run it again") from None


def describe_now(described: dict[str, Any]) -> Description:
    """Check a description that never left its process."""
    return msgspec.convert(described, type=Description)


def interpret(described: Description, data: bytes) -> RecordedRun:
    """Work out what rows and marks mean.

    Raises:
        ProcessLostError: if rows are missing.
    """
    fractions = [(position, SetFraction(fraction)) for position, fraction in described.fractions]
    try:
        events, blocks, num_before, private = to_events(
            read_rows(data), fractions, described.own_device
        )
    except struct.error as error:
        raise ProcessLostError(f"the job's recording is broken: {error}; run it again") from None
    workspaces = frozenset(blocks_seen_as(blocks, described.workspaces))
    labels = label_blocks(
        blocks,
        phases=described.phases,
        layers=described.layers,
        tensors=described.tensors,
        workspaces=workspaces,
        buckets=described.buckets,
    )
    return RecordedRun(
        events=tuple(events),
        labels=labels,
        dispensable=workspaces,
        possible_workspaces=tuple(
            PossibleWorkspace(num_before[position], size_bytes, bool(is_forward))
            for position, size_bytes, is_forward in described.possible_workspaces
        ),
        phases=locate_phases(described.phases, num_before),
        private_streams=private,
        memory_stats=described.memory_stats,
        alloc_conf=described.alloc_conf,
        num_parameters=described.num_parameters,
        num_data_sized_results=described.num_data_sized_results,
        versions=described.versions,
        architectures=tuple(described.architectures),
        cudnn_benchmark=described.cudnn_benchmark,
        communication=find_communication(
            described.ranks,
            described.num_communicators,
            described.versions,
            described.nccl_variables,
        ),
        work_areas=described.work_areas,
        stages=tuple((num_before[mark.position], mark.stage) for mark in described.stages),
        steps=tuple(num_before[mark.position] for mark in described.steps),
        ranks=described.ranks,
        other_devices=tuple(described.other_devices),
        seconds=described.seconds,
    )
