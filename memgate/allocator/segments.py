"""Segments: memory taken from the device for a pool, and given back to it.

The lower half of the caching allocator. It only does what it is told: which block serves a request,
and when cached memory goes back, is decided in ``caching.py``.
"""

from __future__ import annotations

from collections.abc import Collection

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import Device
from memgate.allocator.expandable import ExpandableSegment
from memgate.allocator.pool import BlockPool, PoolBlock
from memgate.allocator.protocol import RecordTrace, SegmentAction
from memgate.allocator.sizes import SMALL_BUFFER
from memgate.allocator.stats import DeviceStats
from memgate.timeline import ResidentSegment


class Segments:
    """All segments of one process on one device."""

    __slots__ = (
        "_config",
        "_device",
        "_record_trace",
        "_stats",
        "private_streams",
        "total_allocated_memory",
    )

    def __init__(
        self, config: AllocatorConfig, device: Device, stats: DeviceStats, trace: RecordTrace
    ) -> None:
        self._config = config
        self._device = device
        self._stats = stats
        self._record_trace = trace
        #: bytes held from the device
        self.total_allocated_memory = 0
        #: streams that stand for private pools
        self.private_streams: Collection[int] = frozenset()

    def cuda_malloc(self, pool: BlockPool, size: int, stream: int) -> PoolBlock | None:
        """Open a segment of its own; None if the device is full."""
        ptr = self._device.malloc(size)
        if ptr is None:
            return None
        self._count(pool, 1, size)
        if size >= self._config.max_split_size:
            self._stats.change_oversize_segments(1)
        self._stats.num_device_alloc += 1
        self._record_trace(SegmentAction.SEGMENT_ALLOC, size, stream)
        return PoolBlock(stream, size, pool, ptr)

    def can_adopt(self, resident: ResidentSegment) -> bool:
        """Say whether a segment could have come about under these settings."""
        if not resident.is_expandable or not self._config.expandable_segments:
            return resident.is_expandable == self._config.expandable_segments
        return resident.size_bytes % self._page_size(resident.is_small) == 0

    def cache(self, block: PoolBlock) -> None:
        """Put a free piece of a segment into its pool."""
        block.pool.insert_into_blocks(block)
        if block.is_split and block.expandable_segment is None:
            self._stats.all.change_inactive_split(1, block.size)
            block.pool.stats.change_inactive_split(1, block.size)

    def release_block(self, block: PoolBlock) -> None:
        """Give back a segment that is all one free block."""
        assert block.expandable_segment is None
        assert not block.is_split
        self._stats.num_device_free += 1
        self._record_trace(SegmentAction.SEGMENT_FREE, block.size, block.stream)
        self._device.free(block.size)
        self._count(block.pool, -1, -block.size)
        if block.size >= self._config.max_split_size:
            self._stats.change_oversize_segments(-1)
        block.pool.erase(block)

    def release_blocks(self, pool: BlockPool, private_stream: int | None = None) -> None:
        """Give back every segment of a pool that is entirely free, and every free page.

        Private pools keep theirs, unless one of them is named.
        """
        to_unmap: list[PoolBlock] = []
        for block in pool.all_blocks():
            if private_stream is None:
                if block.stream in self.private_streams:
                    continue
            elif block.stream != private_stream:
                continue
            if block.expandable_segment is not None:
                to_unmap.append(block)
            elif not block.is_split:
                self.release_block(block)
        for block in to_unmap:
            self.unmap_block(block)
            if not block.is_split:
                self._release_expandable_segment(block)

    def try_allocate_expandable_block(
        self, pool: BlockPool, size: int, stream: int
    ) -> PoolBlock | None:
        """Grow an expandable segment until it has a free block of ``size``; None if it cannot."""
        candidate = self._find_expandable_block(pool, size, stream)
        if not candidate.mapped and not self._map_block(candidate, min(candidate.size, size)):
            return None
        while candidate.size < size:
            following = candidate.next
            assert following is not None
            if not self._map_block(following, min(size - candidate.size, following.size)):
                return None
            candidate = following
        pool.erase(candidate)
        return candidate

    def unmap_block(self, block: PoolBlock) -> None:
        """Give back the whole pages inside a free block; what is left of it stays in the pool."""
        assert block.expandable_segment is not None
        ptr, size = block.expandable_segment.unmap(block.ptr, block.size)
        if size == 0:
            return
        pool = block.pool
        pool.erase(block)
        before_size = ptr - block.ptr
        if before_size > 0:
            before = PoolBlock(block.stream, before_size, pool, block.ptr, block.expandable_segment)
            before.splice(block.prev, block)
            pool.insert_into_blocks(before)
        after_size = block.size - before_size - size
        if after_size > 0:
            after = PoolBlock(block.stream, after_size, pool, ptr + size, block.expandable_segment)
            after.splice(block, block.next)
            pool.insert_into_blocks(after)
        block.ptr = ptr
        block.size = size
        block.mapped = False
        pool.try_merge_blocks(block, block.prev)
        pool.try_merge_blocks(block, block.next)
        pool.insert_unmapped(block)
        self._count(pool, 0, -size)
        self._stats.num_device_free += 1
        self._record_trace(SegmentAction.SEGMENT_UNMAP, size, block.stream)

    def _find_expandable_block(self, pool: BlockPool, size: int, stream: int) -> PoolBlock:
        """Return the lowest place where ``size`` bytes of free or empty address space begin."""
        for empty in pool.unmapped.get(stream, ()):
            before = empty.prev
            candidate = before if before is not None and before.is_free else empty
            if _has_available_address_space(candidate, size):
                return candidate
        segment = ExpandableSegment(self._device, self._page_size(pool.is_small))
        segment.reaches(size)  # a larger one might hold it
        candidate = PoolBlock(stream, segment.size, pool, segment.ptr, segment)
        candidate.mapped = False
        pool.insert_unmapped(candidate)
        return candidate

    def _page_size(self, is_small: bool) -> int:
        return SMALL_BUFFER if is_small else self._config.large_segment_size

    def _map_block(self, to_map: PoolBlock, size: int) -> bool:
        """Put pages behind the start of an empty range; False if the device is full."""
        assert to_map.expandable_segment is not None
        mapped_size = to_map.expandable_segment.map(size)
        if mapped_size == 0:
            return False
        pool = to_map.pool
        pool.erase_unmapped(to_map)
        if to_map.is_tail:  # on another device less, or more, of it would be left
            used = to_map.expandable_segment.size - to_map.size
            to_map.expandable_segment.reaches(used + mapped_size + 1)
        to_map.mapped = True
        if mapped_size < to_map.size:
            remaining = PoolBlock(
                to_map.stream,
                to_map.size - mapped_size,
                pool,
                to_map.ptr + mapped_size,
                to_map.expandable_segment,
            )
            remaining.mapped = False
            remaining.splice(to_map, to_map.next)
            pool.insert_unmapped(remaining)
            to_map.size = mapped_size
        pool.try_merge_blocks(to_map, to_map.prev)
        pool.try_merge_blocks(to_map, to_map.next)
        pool.insert_into_blocks(to_map)
        self._count(pool, 0, mapped_size)
        self._stats.num_device_alloc += 1
        self._record_trace(SegmentAction.SEGMENT_MAP, mapped_size, to_map.stream)
        return True

    def _release_expandable_segment(self, block: PoolBlock) -> None:
        """Give back the address range of an expandable segment that no longer holds any page."""
        assert block.expandable_segment is not None
        assert not block.mapped
        assert block.size == block.expandable_segment.size
        block.pool.erase_unmapped(block)
        block.expandable_segment.release()

    def _count(self, pool: BlockPool, segments: int, size: int) -> None:
        self.total_allocated_memory += size
        self._stats.all.change_reserved(segments, size)
        pool.stats.change_reserved(segments, size)


def _has_available_address_space(block: PoolBlock | None, size: int) -> bool:
    """Say whether free and empty blocks from ``block`` on add up to ``size``."""
    found = 0
    last = None
    while found < size and block is not None and block.is_free:
        found += block.size
        last = block
        block = block.next
    if last is None or not last.is_tail:
        return found >= size
    segment = last.expandable_segment
    assert segment is not None
    return segment.reaches(size - found + segment.size)
