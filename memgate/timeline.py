"""Stage 4's output: the order in which a program asks a GPU for memory and gives it back.

One type per action rather than one wide row with fields that are empty for most actions. They are
``msgspec`` structs, not named tuples: made in a third of the time, checked while they are decoded
from JSON arrays such as ``["alloc", 7, 4096, 0]``, and left alone by the garbage collector, which
otherwise walks a million-event timeline again and again.

Turning a CPU trace into a timeline is another module's job; this one only defines the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

#: PyTorch refuses requests of 2**60 bytes (an exabyte) and more before its allocator sees them
MAX_SIZE_BYTES = 2**60 - 1

SizeBytes = Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES)]
Stream = Annotated[int, Meta(ge=0)]


class Alloc(Struct, frozen=True, array_like=True, gc=False, tag="alloc"):
    """A program asks for memory."""

    block_id: int
    #: as requested, before any rounding
    size_bytes: SizeBytes
    stream: Stream = 0


class Free(Struct, frozen=True, array_like=True, gc=False, tag="free"):
    """A program gives a memory block back."""

    block_id: int


class RecordStream(Struct, frozen=True, array_like=True, gc=False, tag="record_stream"):
    """``tensor.record_stream``: the block is also used on a stream other than its own."""

    block_id: int
    stream: Stream


class EventsPending(Struct, frozen=True, array_like=True, gc=False, tag="events_pending"):
    """From here on, CUDA events recorded on other streams are unfinished (1), or finished (0)."""

    pending: Literal[0, 1]


class StreamsDone(Struct, frozen=True, array_like=True, gc=False, tag="streams_done"):
    """The other streams are done with a block that was freed before: it may be reused now."""

    block_id: int


class EmptyCache(Struct, frozen=True, array_like=True, gc=False, tag="empty_cache"):
    """``torch.cuda.empty_cache()``."""

    #: of a private pool that nobody uses any more: give back what is cached there, and only that
    private_stream: Stream | None = None


class SetFraction(Struct, frozen=True, array_like=True, gc=False, tag="set_fraction"):
    """``torch.cuda.set_per_process_memory_fraction(fraction)``."""

    fraction: Annotated[float, Meta(ge=0, le=1)]


TimelineEvent = Alloc | Free | RecordStream | EventsPending | StreamsDone | EmptyCache | SetFraction


class ResidentSegment(Struct, frozen=True, gc=False):
    """Memory that the program held from the device before the first event, piece by piece."""

    stream: Stream
    is_small: bool
    is_expandable: bool
    #: each piece's block, None for a free one, and its bytes; in the order of addresses
    pieces: tuple[tuple[int | None, int], ...]

    @property
    def size_bytes(self) -> int:
        """Of all pieces."""
        return sum(size for _, size in self.pieces)


class Phase(StrEnum):
    """Parts of an iteration; the phase in which a block is allocated shows what it is for."""

    #: before the first forward pass, between backward pass and step, between two iterations
    BETWEEN = "between"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Category(StrEnum):
    """What a memory block is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    #: made in the forward pass and kept for the backward pass
    ACTIVATIONS = "activations"
    BATCH = "batch"
    #: freed before its phase ends
    TEMPORARY = "temporary"
    #: kept by a library for its own use
    WORKSPACE = "workspace"
    #: nothing tells what for
    OTHER = "other"


class Label(NamedTuple):
    """What is known about a memory block besides its size."""

    category: Category
    #: path of the module it belongs to, such as ``layer4.2.conv1``; empty if there is none
    layer: str


class PhaseStart(NamedTuple):
    """From an event on, the program is in a phase."""

    event_index: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The events of one process on one device, in the order in which the device sees them."""

    events: tuple[TimelineEvent, ...]
    #: by block id; empty if nothing is known
    labels: tuple[Label, ...] = ()
    #: ids of blocks that the program can do without if there is no memory for them: cuDNN's
    #: workspaces, for which PyTorch catches the error and takes a plan that wants less
    dispensable: frozenset[int] = frozenset()
    #: where blocks lay that were there before the program was watched, if that is known; the first
    #: events allocate them. On a device too small for all of it they are allocated one by one
    residents: tuple[ResidentSegment, ...] = ()
    #: streams that stand for private pools (CUDA graphs, ``torch.cuda.MemPool``): what is cached
    #: for them serves them alone, and is not given back under pressure
    private_streams: frozenset[int] = frozenset()
    #: in the order of events, each with an event of its own and another phase than the one before;
    #: empty if nothing is known
    phases: tuple[PhaseStart, ...] = ()
    #: for a trace: how often something could not be explained, by the names in ``BlockProblem`` and
    #: ``LinkProblem``
    diagnostics: Mapping[str, int] = field(default_factory=dict)
    #: and, for each problem, how much of what it could affect it did affect
    shares: Mapping[str, float] = field(default_factory=dict)


def make_phases(starts: Iterable[PhaseStart], num_events: int) -> tuple[PhaseStart, ...]:
    """Put starts of phases into the form that a timeline has them in.

    Phases in which nothing was allocated or freed are left out, and equal neighbours are merged.
    """
    kept: list[PhaseStart] = []
    for start in starts:
        if kept and kept[-1].event_index == start.event_index:
            kept.pop()
        if not kept or kept[-1].phase is not start.phase:
            kept.append(start)
    return tuple(start for start in kept if start.event_index < num_events)
