"""The allocator nobody uses, for comparison: one cudaMalloc per request, one cudaFree per free.

What is reserved is what is allocated, rounded up to 512 bytes: no cache, no sharing of segments, no
fragmentation. It shows what caching costs in memory, and it is the smallest example
of an allocator that ``replay`` can drive (docs/allocator.md). PyTorch behaves like this under
``PYTORCH_NO_CUDA_MEMORY_CACHING=1``.

Known limitations: the driver packs small allocations into pages of its own in a way NVIDIA does not
document, so a real device would show somewhat more. Of the allocator settings only
``per_process_memory_fraction`` means anything here. cudaFree waits for the whole device, so
``record_stream`` never delays a free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import Device
from memgate.allocator.protocol import (
    OutOfMemory,
    RecordTrace,
    SegmentAction,
    SegmentInfo,
)
from memgate.allocator.sizes import MIN_BLOCK_SIZE, SMALL_SIZE
from memgate.allocator.stats import DeviceStats, PoolStats
from memgate.errors import SimulationError
from memgate.timeline import ResidentSegment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DirectBlock:
    """One cudaMalloc."""

    address: int
    size: int
    requested_size: int
    stream: int


class DirectAllocator:
    """Every request is a device allocation of its own."""

    def __init__(self, config: AllocatorConfig, device: Device, record_trace: RecordTrace) -> None:
        """Make an empty allocator over ``device``; segment events go to ``record_trace``."""
        self.stats = DeviceStats()
        self._device = device
        self._record_trace = record_trace
        self._blocks: set[DirectBlock] = set()
        self._allowed_bytes: int | None = None
        self.set_memory_fraction(config.per_process_memory_fraction)

    def adopt(self, segments: Sequence[ResidentSegment]) -> Mapping[int, DirectBlock]:
        """Nothing lies anywhere here: each block is asked for."""
        return {}

    def hand_out(self, block: DirectBlock, size: int) -> None:
        """Nothing was adopted."""

    def keep_cache(self, streams: Collection[int]) -> None:
        """There is no cache."""

    def malloc(self, size: int, stream: int) -> DirectBlock | OutOfMemory:
        """Ask the device; there is nothing else to try."""
        rounded = -(-size // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
        over_limit = (
            self._allowed_bytes is not None
            and self.stats.all.reserved_bytes + rounded > self._allowed_bytes
        )
        address = None if over_limit else self._device.malloc(rounded)
        if address is None:
            self.stats.num_ooms += 1
            return self._out_of_memory(rounded, size)
        block = DirectBlock(address=address, size=rounded, requested_size=size, stream=stream)
        self._blocks.add(block)
        for stats in self._stats_for(rounded):
            stats.change_reserved(1, rounded)
            stats.block_allocated(rounded, size)
        self.stats.num_device_alloc += 1
        self._record_trace(SegmentAction.SEGMENT_ALLOC, rounded, stream)
        return block

    def free(self, block: DirectBlock) -> None:
        """Give the memory back to the device at once."""
        self._blocks.remove(block)
        self._device.free(block.size)
        for stats in self._stats_for(block.size):
            stats.block_freed(block.size, block.requested_size)
            stats.change_reserved(-1, -block.size)
        self.stats.num_device_free += 1
        self._record_trace(SegmentAction.SEGMENT_FREE, block.size, block.stream)

    def record_stream(self, block: DirectBlock, stream: int) -> None:
        """Nothing to note: cudaFree waits for all streams."""

    def set_events_pending(self, pending: bool) -> None:
        """Nothing waits for events."""

    def finish_streams(self, block: DirectBlock) -> None:
        """Nothing waits for streams."""

    def empty_cache(self, private_stream: int | None = None) -> None:
        """There is no cache."""

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the process to a share of the capacity; 1.0 lifts the limit."""
        self._allowed_bytes = self._device.allowed_bytes(fraction)

    def snapshot(self) -> tuple[SegmentInfo, ...]:
        """Return one segment per block."""
        return tuple(
            SegmentInfo(
                address=block.address,
                total_size=block.size,
                allocated_size=block.size,
                active_size=block.size,
                is_large=block.size > SMALL_SIZE,
                is_expandable=False,
                stream=block.stream,
                num_blocks=1,
            )
            for block in sorted(self._blocks, key=lambda block: block.address)
        )

    def check_invariants(self) -> None:
        """Raise ``SimulationError`` if reserved is anything but what the blocks add up to."""
        held = sum(block.size for block in self._blocks)
        if not self.stats.all.reserved_bytes == self.stats.all.allocated_bytes == held:
            raise SimulationError(f"direct allocator holds {held} bytes, its counters disagree")

    def _stats_for(self, size: int) -> tuple[PoolStats, PoolStats]:
        small = size <= SMALL_SIZE
        return self.stats.all, self.stats.small_pool if small else self.stats.large_pool

    def _out_of_memory(self, tried: int, size: int) -> OutOfMemory:
        return OutOfMemory(
            requested_bytes=size,
            tried_bytes=tried,
            capacity_bytes=self._device.capacity_bytes,
            free_bytes=max(0, self._device.free_bytes),
            allowed_bytes=self._allowed_bytes,
            allocated_bytes=self.stats.all.allocated_bytes,
            reserved_bytes=self.stats.all.reserved_bytes,
        )
