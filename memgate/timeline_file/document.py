"""The layout of a timeline file: magic, version, and a packed document; each field with its rule.

The rules are in the types: what ``msgspec`` decodes as a ``Document`` keeps those that concern one
value. Rules that concern several are in ``columns`` and ``reading``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from memgate.margins import Family
from memgate.report import ESTIMATE_CODES
from memgate.timeline import Category
from memgate.timeline_file.recorded import JobPhase, RecordingEngine
from memgate.units import MIB

#: begins with what no text does, and has both kinds of line ends: a transfer as text breaks it
MAGIC = b"\x89MGTL\r\n\x1a"

#: major, minor. A reader takes all minor ones of a major that it knows: they only add fields
FORMAT_VERSION = (1, 3)

#: magic and version; what follows is a zlib stream of one MessagePack document
HEADER_BYTES = len(MAGIC) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much a timeline file may be."""

    max_file_bytes: int = 32 * MIB
    max_unpacked_bytes: int = 64 * MIB
    max_events: int = 2_000_000


#: of any file, whatever the reader's limits are
MAX_EVENTS = ReadLimits().max_events

#: more than any job has
MAX_RANKS = 1 << 24

#: more than any device has: 8 TiB
MAX_SIZE_BYTES = 1 << 43
_MAX_STREAM = (1 << 63) - 1

#: of a job, those that are in a file
MAX_RECORDED_RANKS = 64

#: no control characters but line ends and tabs: texts are printed on terminals
_PLAIN = r"\A[^\x00-\x08\x0b-\x1f\x7f-\x9f]*\Z"
#: and of the path of a layer, no more than 64 parts: layers are shown as a tree
_LAYER = r"\A(?:[^.\x00-\x08\x0b-\x1f\x7f-\x9f]*\.){0,63}[^.\x00-\x08\x0b-\x1f\x7f-\x9f]*\Z"
_ANSWERS_OWN = "|".join(sorted(ESTIMATE_CODES))

Name = Annotated[str, Meta(max_length=200, pattern=_PLAIN)]
Text = Annotated[str, Meta(max_length=4_000, pattern=_PLAIN)]
#: codes of the answer itself are not for a file to give
Code = Annotated[str, Meta(pattern=rf"\A(?!(?:{_ANSWERS_OWN})\Z)[A-Z][A-Z0-9_]{{0,63}}\Z")]
Count = Annotated[int, Meta(ge=0, le=1 << 60)]
Column = Annotated[bytes, Meta(max_length=4 * MAX_EVENTS)]
Stream = Annotated[int, Meta(ge=0, le=_MAX_STREAM)]


class GpuPart(Struct, frozen=True, kw_only=True):
    """See ``RecordedGpu``."""

    name: Name
    memory_bytes: Annotated[int, Meta(ge=1, le=1 << 50)]
    compute_capability: tuple[Annotated[int, Meta(ge=1, le=99)], Annotated[int, Meta(ge=0, le=9)]]
    #: None if the events do not depend on it
    multiprocessors: Annotated[int, Meta(ge=1, le=10_000)] | None
    #: the events depend on how much memory there is, too
    memory_matters: bool


class MarkPart(Struct, frozen=True, array_like=True):
    """See ``JobMark``."""

    event_index: Annotated[int, Meta(ge=0, le=MAX_EVENTS)]
    phase: JobPhase
    step: Count | None = None


class BatchPart(Struct, frozen=True, kw_only=True):
    """See ``BatchShape``."""

    name: Name
    shape: Annotated[tuple[Count, ...], Meta(max_length=16)]
    dtype: Name
    num_batches: Count


class ReasonPart(Struct, frozen=True, array_like=True):
    """See ``Reason``."""

    code: Code
    message: Text


class LabelPart(Struct, frozen=True, array_like=True):
    """See ``Label``."""

    category: Category
    layer: Annotated[str, Meta(max_length=500, pattern=_LAYER)]


class EventsPart(Struct, frozen=True, kw_only=True):
    """Events by column, see ``columns``."""

    #: one byte for each event
    actions: Annotated[bytes, Meta(max_length=MAX_EVENTS)]
    #: of each event that names a block: the difference from the block named before, int32
    blocks: Column
    #: the sizes that there are, and which of them each allocation has, uint32
    sizes: Annotated[
        list[Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES)]], Meta(max_length=MAX_EVENTS)
    ]
    size_indices: Column
    #: the streams that there are, and which of them each allocation or use is on, uint32
    streams: Annotated[list[Stream], Meta(max_length=10_000)]
    stream_indices: Column
    #: of each event that has another value
    values: Annotated[list[int | float | None], Meta(max_length=MAX_EVENTS)]


class LabelsPart(Struct, frozen=True, kw_only=True):
    """Labels by column: those that there are, and which of them each block has, uint32."""

    labels: Annotated[list[LabelPart], Meta(max_length=200_000)]
    indices: Column


class PhasesPart(Struct, frozen=True, kw_only=True):
    """Phases of iterations: the first event of each, uint32, and one byte for its kind."""

    starts: Column
    kinds: Annotated[bytes, Meta(max_length=MAX_EVENTS)]


class CommunicatorPart(Struct, frozen=True, kw_only=True):
    """See ``Communicator``."""

    num_ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    ranks_on_node: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    local_peers: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    remote_peers: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    is_layout_known: bool = True
    collectives: Annotated[list[Name], Meta(max_length=100)] | None = None


class NcclPart(Struct, frozen=True, kw_only=True):
    """See ``NcclUse``."""

    communicators: Annotated[list[CommunicatorPart], Meta(max_length=10_000)]
    version: tuple[Annotated[int, Meta(ge=1, le=99)], Annotated[int, Meta(ge=0, le=99)]]
    buffer_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None
    max_channels: Annotated[int, Meta(ge=0, le=1024)] | None = None
    min_channels: Annotated[int, Meta(ge=0, le=1024)] | None = None
    uses_nvls: bool | None = None


WorkspaceBytes = Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES)]


class RunPart(Struct, frozen=True, kw_only=True):
    """One process of a job."""

    alloc_conf: Annotated[str, Meta(max_length=1_000, pattern=_PLAIN)]
    num_parameters: Count
    marks: Annotated[list[MarkPart], Meta(max_length=100_000)]
    notes: Annotated[list[ReasonPart], Meta(max_length=100)]
    doubts: Annotated[list[ReasonPart], Meta(max_length=100)]
    #: since 1.1
    least_segments_bytes: Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES)] | None = None
    #: since 1.3
    family: Family = Family.UNKNOWN
    workspaces: tuple[WorkspaceBytes, WorkspaceBytes] = (0, 0)
    #: since 1.2
    rank: Annotated[int, Meta(ge=0, lt=MAX_RANKS)] = 0
    nccl: NcclPart | None = None
    events: EventsPart
    labels: LabelsPart
    phases: PhasesPart
    #: ids of blocks, uint32
    dispensable: Column
    private_streams: Annotated[list[Stream], Meta(max_length=1_000)]
    #: of a trace, see ``Timeline``
    diagnostics: Annotated[dict[Name, Count], Meta(max_length=100)]
    shares: Annotated[dict[Name, Annotated[float, Meta(ge=0, le=1)]], Meta(max_length=100)]


class Document(RunPart, frozen=True, kw_only=True):
    """What is packed in a file; see ``RecordedTimeline``."""

    memgate_version: Name
    engine_revision: Count
    engine: RecordingEngine
    command: Annotated[list[Text], Meta(max_length=1_000)]
    gpu: GpuPart
    versions: Annotated[dict[Name, Name], Meta(max_length=200)]
    cudnn: Name | None
    architectures: Annotated[list[Name], Meta(max_length=100)]
    batches: Annotated[list[BatchPart], Meta(max_length=10_000)]
    #: since 1.2
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 1
    #: since 1.2
    other_ranks: Annotated[list[RunPart], Meta(max_length=MAX_RECORDED_RANKS - 1)] = []
