"""Counters of the allocator, with the names and meanings of ``torch.cuda.memory_stats()``.

Every counter has a current value and a peak. They are kept for each pool and for both together,
because the peak of a sum is not the sum of peaks.
"""

from __future__ import annotations

from collections.abc import Sequence

#: each has a current value and a peak in ``PoolStats``
COUNTERS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class PoolStats:
    """Counters of one pool, or of both pools together.

    Plain attributes and a method for each thing that happens, instead of an object per counter: the
    allocator spends a good part of its time here.
    """

    __slots__ = (
        "_peak_active_bytes_while_waiting",
        "_peak_active_while_waiting",
        "_waiting",
        "allocated_bytes",
        "allocation",
        "inactive_split",
        "inactive_split_bytes",
        "peak_allocated_bytes",
        "peak_allocation",
        "peak_inactive_split",
        "peak_inactive_split_bytes",
        "peak_requested_bytes",
        "peak_reserved_bytes",
        "peak_segment",
        "requested_bytes",
        "reserved_bytes",
        "segment",
        "waiting_bytes",
    )

    #: COUNT: allocations the program holds
    allocation: int
    peak_allocation: int
    #: COUNT: segments obtained by cudaMalloc; mapped pages of expandable segments are not counted
    segment: int
    peak_segment: int
    #: COUNT: free blocks that cannot go back to the device, since a part of their segment is in use
    inactive_split: int
    peak_inactive_split: int
    #: SUM: bytes of blocks the program holds, rounded sizes
    allocated_bytes: int
    peak_allocated_bytes: int
    #: SUM: bytes taken from the device, used or cached
    reserved_bytes: int
    peak_reserved_bytes: int
    #: SUM: bytes of inactive split blocks; expandable segments are left out, as upstream does
    inactive_split_bytes: int
    peak_inactive_split_bytes: int
    #: SUM: bytes the program asked for, before rounding; of active blocks
    requested_bytes: int
    peak_requested_bytes: int
    # Blocks that the program freed and a stream still uses. Active is allocated plus waiting, so
    # its peak is that of allocated unless something waits: only then is it tracked.
    _waiting: int
    #: SUM: bytes that the program freed and a stream still uses
    waiting_bytes: int
    _peak_active_while_waiting: int
    _peak_active_bytes_while_waiting: int

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    @classmethod
    def from_row(cls, row: Sequence[int]) -> PoolStats:
        """Make them of ``COUNTERS`` in their order, each with its peak."""
        stats = cls()
        for counter, current, peak in zip(COUNTERS, row[::2], row[1::2], strict=True):
            if not counter.startswith("active"):
                setattr(stats, counter, current)
                setattr(stats, f"peak_{counter}", peak)
        active, active_bytes = 2 * COUNTERS.index("active"), 2 * COUNTERS.index("active_bytes")
        stats._waiting = row[active] - stats.allocation
        stats.waiting_bytes = row[active_bytes] - stats.allocated_bytes
        stats._peak_active_while_waiting = row[active + 1]
        stats._peak_active_bytes_while_waiting = row[active_bytes + 1]
        return stats

    @property
    def active(self) -> int:
        """COUNT: blocks that the program holds, or freed while a stream still uses them."""
        return self.allocation + self._waiting

    @property
    def peak_active(self) -> int:
        """The most active blocks there ever were."""
        return max(self.peak_allocation, self._peak_active_while_waiting)

    @property
    def active_bytes(self) -> int:
        """SUM: bytes of active blocks."""
        return self.allocated_bytes + self.waiting_bytes

    @property
    def peak_active_bytes(self) -> int:
        """The most bytes of active blocks there ever were."""
        return max(self.peak_allocated_bytes, self._peak_active_bytes_while_waiting)

    def block_allocated(self, size: int, requested: int) -> None:
        """A block was handed to the program."""
        self.allocation = value = self.allocation + 1
        if value > self.peak_allocation:
            self.peak_allocation = value
        self.allocated_bytes = value = self.allocated_bytes + size
        if value > self.peak_allocated_bytes:
            self.peak_allocated_bytes = value
        self.requested_bytes = value = self.requested_bytes + requested
        if value > self.peak_requested_bytes:
            self.peak_requested_bytes = value
        if self._waiting:
            self._note_active_peak()

    def block_freed(self, size: int, requested: int) -> None:
        """The program gave a block back, and nothing else uses it."""
        self.allocation -= 1
        self.allocated_bytes -= size
        self.requested_bytes -= requested

    def block_waits(self, size: int) -> None:
        """The program gave a block back, but a stream still uses it."""
        self.allocation -= 1
        self.allocated_bytes -= size
        self._waiting += 1
        self.waiting_bytes += size
        self._note_active_peak()

    def block_waited(self, size: int, requested: int) -> None:
        """No stream uses a freed block any more."""
        self._waiting -= 1
        self.waiting_bytes -= size
        self.requested_bytes -= requested

    def change_inactive_split(self, blocks: int, size: int) -> None:
        """The number and the bytes of stranded free blocks changed."""
        self.inactive_split = value = self.inactive_split + blocks
        if value > self.peak_inactive_split:
            self.peak_inactive_split = value
        self.inactive_split_bytes = value = self.inactive_split_bytes + size
        if value > self.peak_inactive_split_bytes:
            self.peak_inactive_split_bytes = value

    def change_reserved(self, segments: int, size: int) -> None:
        """Memory was taken from the device or given back to it."""
        self.segment += segments
        self.peak_segment = max(self.peak_segment, self.segment)
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _note_active_peak(self) -> None:
        self._peak_active_while_waiting = max(self._peak_active_while_waiting, self.active)
        self._peak_active_bytes_while_waiting = max(
            self._peak_active_bytes_while_waiting, self.active_bytes
        )


class DeviceStats:
    """All counters of one device."""

    __slots__ = (
        "all",
        "large_pool",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
        "num_ooms",
        "num_sync_all_streams",
        "oversize_allocations",
        "oversize_segments",
        "peak_oversize_allocations",
        "peak_oversize_segments",
        "small_pool",
    )

    def __init__(self) -> None:
        self.all = PoolStats()
        self.small_pool = PoolStats()
        self.large_pool = PoolStats()
        #: COUNT: failed device allocations after which the whole cache was given back
        self.num_alloc_retries = 0
        #: COUNT: out-of-memory errors raised
        self.num_ooms = 0
        #: COUNT: requests refused in advance by ``throw_on_cudamalloc_oom``
        self.num_oom_rejections = 0
        #: COUNT: waits for all streams, each of which stalls the GPU
        self.num_sync_all_streams = 0
        #: COUNT: calls of cudaMalloc, and mappings of expandable segments
        self.num_device_alloc = 0
        #: COUNT: calls of cudaFree, and unmappings of expandable segments
        self.num_device_free = 0
        #: COUNT: live blocks, and segments, of at least ``max_split_size``
        self.oversize_allocations = 0
        self.peak_oversize_allocations = 0
        self.oversize_segments = 0
        self.peak_oversize_segments = 0

    @classmethod
    def from_row(cls, row: Sequence[int]) -> DeviceStats:
        """Make them of the numbers in ``DeviceStats`` of ``native/sizes.h``, in their order."""
        stats = cls()
        width = 2 * len(COUNTERS)
        pools = (PoolStats.from_row(row[at : at + width]) for at in range(0, 3 * width, width))
        stats.all, stats.small_pool, stats.large_pool = pools
        (
            stats.oversize_allocations,
            stats.peak_oversize_allocations,
            stats.oversize_segments,
            stats.peak_oversize_segments,
            stats.num_alloc_retries,
            stats.num_ooms,
            stats.num_oom_rejections,
            stats.num_sync_all_streams,
            stats.num_device_alloc,
            stats.num_device_free,
        ) = row[3 * width :]
        return stats

    def change_oversize_allocations(self, change: int) -> None:
        """A block of at least ``max_split_size`` was handed out or given back."""
        self.oversize_allocations += change
        self.peak_oversize_allocations = max(
            self.peak_oversize_allocations, self.oversize_allocations
        )

    def change_oversize_segments(self, change: int) -> None:
        """A segment of at least ``max_split_size`` came or went."""
        self.oversize_segments += change
        self.peak_oversize_segments = max(self.peak_oversize_segments, self.oversize_segments)

    def memory_stats(self) -> dict[str, int]:
        """Return the counters under the keys of ``torch.cuda.memory_stats()``."""
        flat = {
            f"{counter}.{pool}.{when}": getattr(getattr(self, pool), prefix + counter)
            for counter in COUNTERS
            for pool in ("all", "small_pool", "large_pool")
            for when, prefix in (("current", ""), ("peak", "peak_"))
        }
        for counter in ("oversize_allocations", "oversize_segments"):
            flat[f"{counter}.current"] = getattr(self, counter)
            flat[f"{counter}.peak"] = getattr(self, f"peak_{counter}")
        for name in self.__slots__:
            if name.startswith("num_"):
                flat[name] = getattr(self, name)
        return flat
