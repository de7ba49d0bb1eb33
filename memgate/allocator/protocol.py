"""What an allocator is to the rest of memgate, and what it answers. See docs/allocator.md.

``replay`` drives any class that fits ``Allocator``; nothing else about an allocator is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from memgate.allocator.stats import DeviceStats
from memgate.timeline import ResidentSegment
from memgate.units import format_size

BlockT = TypeVar("BlockT")


class SegmentAction(StrEnum):
    """What can happen between an allocator and the device, named as in PyTorch's own traces."""

    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"

    @property
    def takes_memory(self) -> bool:
        """The device gives memory; otherwise it gets memory back."""
        return self in (SegmentAction.SEGMENT_ALLOC, SegmentAction.SEGMENT_MAP)


#: called with the action, its bytes and the stream when memory comes from the device or goes to it
RecordTrace = Callable[[SegmentAction, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A request that could not be served: the answer, not an error."""

    #: what the program asked for
    requested_bytes: int
    #: what PyTorch reports as "tried to allocate": the segment it wanted
    tried_bytes: int
    capacity_bytes: int
    #: what the device had left
    free_bytes: int
    #: the limit set by a memory fraction, if there is one
    allowed_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    #: the message ends with the advice to try expandable segments
    advises_expandable_segments: bool = False
    #: refused by ``throw_on_cudamalloc_oom`` before any cached memory was given back
    rejected_in_advance: bool = False

    @property
    def message(self) -> str:
        """The text that a user of PyTorch knows, as torch 2.14.1 words it."""
        if self.rejected_in_advance:
            return (
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
                " per_process_memory_fraction limit. Requested size:"
                f" {format_size(self.requested_bytes)}"
            )
        allowed = self.allowed_bytes
        unallocated = self.reserved_bytes - self.allocated_bytes
        return (
            f"CUDA out of memory. Tried to allocate {format_size(self.tried_bytes)}."
            f" GPU 0 has a total capacity of {format_size(self.capacity_bytes)}"
            f" of which {format_size(self.free_bytes)} is free. "
            + (f"{format_size(allowed)} allowed; " if allowed is not None else "")
            + f"Of the allocated memory {format_size(self.allocated_bytes)} is allocated by"
            f" PyTorch, and {format_size(unallocated)} is reserved by PyTorch but unallocated."
            + (_EXPANDABLE_SEGMENTS_ADVICE if self.advises_expandable_segments else "")
        )


_EXPANDABLE_SEGMENTS_ADVICE = (
    " If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation. "
    " See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """A contiguous piece of device memory, as ``torch.cuda.memory_snapshot()`` shows it."""

    address: int
    total_size: int
    allocated_size: int
    #: allocated, or freed and still waited for by another stream
    active_size: int
    is_large: bool
    is_expandable: bool
    stream: int
    num_blocks: int


class Allocator(Protocol[BlockT]):
    """Serves requests for device memory. ``BlockT`` is whatever it wants back in ``free``."""

    stats: DeviceStats

    def adopt(self, segments: Sequence[ResidentSegment]) -> Mapping[int, BlockT]:
        """Begin with memory that is there already; return the blocks to ``hand_out``, by id.

        None at all, if there is no room, or if an allocator cannot have blocks where they lay.
        """

    def hand_out(self, block: BlockT, size: int) -> None:
        """Give the program a block that ``adopt`` made, for a request of ``size`` bytes."""

    def keep_cache(self, streams: Collection[int]) -> None:
        """Note whose cached memory is not given back: streams that stand for private pools."""

    def malloc(self, size: int, stream: int) -> BlockT | OutOfMemory:
        """Serve a request of ``size`` > 0 bytes on a stream."""

    def free(self, block: BlockT) -> None:
        """Take a block back."""

    def record_stream(self, block: BlockT, stream: int) -> None:
        """Note that another stream uses the block, too."""

    def set_events_pending(self, pending: bool) -> None:
        """Say whether CUDA events recorded on other streams are still unfinished."""

    def finish_streams(self, block: BlockT) -> None:
        """Note that the other streams are done with a freed block."""

    def empty_cache(self, private_stream: int | None = None) -> None:
        """Give cached memory back to the device; or that of one private pool, and only that."""

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the process to a share of the device's capacity."""

    def snapshot(self) -> tuple[SegmentInfo, ...]:
        """Return all memory held from the device, by address."""

    def check_invariants(self) -> None:
        """Raise ``SimulationError`` if the accounts contradict each other. Slow: for tests."""
