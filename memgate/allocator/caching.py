"""PyTorch's CUDACachingAllocator, decision by decision, without a GPU.

- A request is rounded up to a multiple of 512 bytes (``sizes.round_size``).
- Up to 1 MiB it belongs to the small pool, whose segments are 2 MiB; otherwise to the large pool.
- The smallest free block that is large enough serves it, the lowest address among equals, and only
  a block of the same stream. If much of the block is left over, it is split.
- If there is none, the device is asked for a new segment: 20 MiB for requests below 10 MiB, so that
  several share it, otherwise the request's own size rounded up to 2 MiB.
- If the device is full, cached memory goes back to it, step by step, and the request is tried again
  after each step (``malloc``). Only then is the program out of memory.
- A freed block joins its free neighbours and waits in its pool. Memory goes back to the device only
  under pressure.
- A block used on other streams waits until they are done: Note [Frees that wait].

Functions have the names of their upstream counterparts, so that the two can be read side by side:
https://github.com/pytorch/pytorch/blob/v2.14.1/c10/cuda/CUDACachingAllocator.cpp

Known limitations: free-memory callbacks and ``backend:cudaMallocAsync`` are not modelled. Settings
that concern pinned host memory are read and have no effect on the device. A private pool (CUDA
graphs, ``torch.cuda.MemPool``) is a stream of its own that keeps its cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from memgate.allocator.adoption import adopt_segments
from memgate.allocator.ageing import find_old_segments
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import Device
from memgate.allocator.events import EventQueues
from memgate.allocator.growth import tightest_fit
from memgate.allocator.invariants import check_pool_invariants
from memgate.allocator.pool import BlockPool, PoolBlock
from memgate.allocator.protocol import OutOfMemory, RecordTrace, SegmentInfo
from memgate.allocator.segments import Segments
from memgate.allocator.sizes import SMALL_SIZE, get_allocation_size, round_size, should_split
from memgate.allocator.snapshot import snapshot_segments
from memgate.allocator.stats import DeviceStats
from memgate.allocator.window import WHOLE, share_of, threshold_of
from memgate.timeline import ResidentSegment


class AllocParams(NamedTuple):
    """A request that no cached block can serve."""

    pool: BlockPool
    #: the rounded size: what the program will hold
    size: int
    #: the segment to ask for
    alloc_size: int
    #: as requested
    orig_size: int
    stream: int


class CachingAllocator:
    """One process's caching allocator on one device. The only mutable state of a replay."""

    def __init__(self, config: AllocatorConfig, device: Device, record_trace: RecordTrace) -> None:
        """Make an empty allocator over ``device``; segment events go to ``record_trace``."""
        self.stats = DeviceStats()
        self._totals = self.stats.all
        self._config = config
        self._device = device
        self._small_blocks = BlockPool(is_small=True, stats=self.stats.small_pool)
        self._large_blocks = BlockPool(is_small=False, stats=self.stats.large_pool)
        self._segments = Segments(config, device, self.stats, record_trace)
        self._active_blocks: set[PoolBlock] = set()
        #: blocks freed by the program that other streams still use
        self._cuda_events = EventQueues()
        self._events_pending = False
        #: the share of the device that the process may hold; 1.0: no limit
        self._fraction = 1.0
        #: a threshold is set, and a limit that it is a share of
        self._garbage_collects = False
        self.set_memory_fraction(config.per_process_memory_fraction)

    def keep_cache(self, streams: Collection[int]) -> None:
        """Note which streams stand for private pools."""
        self._segments.private_streams = frozenset(streams)

    def adopt(self, segments: Sequence[ResidentSegment]) -> Mapping[int, PoolBlock]:
        """Begin with memory that is there already, if there is room for all of it."""
        size = sum(segment.size_bytes for segment in segments)
        if not segments or not all(map(self._segments.can_adopt, segments)):
            return {}
        if not self._device.has_room(size) or not self._device.allows(size, self._fraction):
            return {}
        return adopt_segments(segments, self._segments, self._small_blocks, self._large_blocks)

    # -- requests ----------------------------------------------------------------------------

    def malloc(self, size: int, stream: int) -> PoolBlock | OutOfMemory:
        """Serve a request: from the cache, or from the device, giving cache back if necessary."""
        if self._cuda_events.by_stream:
            self._process_events()
        rounded = round_size(size, self._config)
        pool = self._small_blocks if rounded <= SMALL_SIZE else self._large_blocks
        block = self._get_free_block(pool, rounded, stream)
        if block is None:
            new_block = self._get_new_block(pool, rounded, size, stream)
            if isinstance(new_block, OutOfMemory):
                return new_block
            block = new_block
        block = self._alloc_found_block(block, rounded)
        self.hand_out(block, size)
        return block

    def _get_new_block(
        self, pool: BlockPool, size: int, orig_size: int, stream: int
    ) -> PoolBlock | OutOfMemory:
        """Get a block from the device, giving cached memory back to it step by step."""
        params = AllocParams(pool, size, get_allocation_size(size, self._config), orig_size, stream)
        if self._garbage_collects:
            self._garbage_collect_cached_blocks()
        block = self._alloc_block(params)
        if block is None and self._release_available_cached_blocks(params):
            block = self._alloc_block(params)
        if block is None:
            self.empty_cache()
            self.stats.num_alloc_retries += 1
            block = self._alloc_block(params)
        if block is None:
            self.stats.num_ooms += 1
            return self._out_of_memory(params)
        return block

    def _alloc_found_block(self, block: PoolBlock, size: int) -> PoolBlock:
        """Cut off what is not needed of a block."""
        pool = block.pool
        if should_split(block.size - size, size, pool.is_small, self._config):
            block = self._split(block, size)
        elif block.expandable_segment is None and block.is_split:
            self._totals.change_inactive_split(-1, -block.size)
            pool.stats.change_inactive_split(-1, -block.size)
        return block

    def hand_out(self, block: PoolBlock, orig_size: int) -> None:
        """Give a block to the program."""
        block.allocated = True
        block.requested_size = orig_size
        self._active_blocks.add(block)
        self._totals.block_allocated(block.size, orig_size)
        block.pool.stats.block_allocated(block.size, orig_size)
        if block.size >= self._config.max_split_size:
            self.stats.change_oversize_allocations(1)

    def _split(self, remaining: PoolBlock, size: int) -> PoolBlock:
        """Cut the first ``size`` bytes off a free block and return them; the rest stays free."""
        pool = remaining.pool
        already_split = remaining.prev is not None or remaining.next is not None
        block = PoolBlock(remaining.stream, size, pool, remaining.ptr, remaining.expandable_segment)
        block.splice(remaining.prev, remaining)
        remaining.ptr += size
        remaining.size -= size
        pool.insert_into_blocks(remaining)
        if block.expandable_segment is None:
            blocks, change = (0, -size) if already_split else (1, remaining.size)
            self._totals.change_inactive_split(blocks, change)
            pool.stats.change_inactive_split(blocks, change)
        return block

    def _get_free_block(self, pool: BlockPool, size: int, stream: int) -> PoolBlock | None:
        """Take the best fit out of a pool, if there is one."""
        if self._garbage_collects:
            pool.get_free_blocks_call_count += 1
        free_blocks = pool.blocks.get(stream)
        if free_blocks is None:
            return None
        block = free_blocks.lower_bound(size)
        if block is None:
            return None
        if block.expandable_segment is not None:
            block = tightest_fit(block, free_blocks)
        max_split_size = self._config.max_split_size
        if size < max_split_size <= block.size:
            return None  # blocks this large are kept whole, for requests as large
        if size >= max_split_size and block.size >= size + self._config.max_non_split_rounding_size:
            return None
        free_blocks.remove(block)
        return block

    def _alloc_block(self, params: AllocParams) -> PoolBlock | OutOfMemory | None:
        """Ask the device once: None if it is full, out of memory if asking again is ruled out."""
        would_hold = self._segments.total_allocated_memory + params.alloc_size
        if not self._device.allows(would_hold, self._fraction):
            return None
        if self._config.throw_on_cudamalloc_oom and self._is_rejected(would_hold):
            self.stats.num_oom_rejections += 1
            return self._out_of_memory(params, rejected_in_advance=True)
        if self._config.expandable_segments:
            return self._segments.try_allocate_expandable_block(
                params.pool, params.size, params.stream
            )
        return self._segments.cuda_malloc(params.pool, params.alloc_size, params.stream)

    def _is_rejected(self, would_hold: int) -> bool:
        """Say whether ``throw_on_cudamalloc_oom`` refuses a request.

        Upstream compares with the share in the settings, whatever
        ``set_per_process_memory_fraction`` said since, of the whole device, whatever others hold of
        it.
        """
        fraction = self._config.per_process_memory_fraction
        limit = share_of(fraction) if fraction < 1.0 else WHOLE
        return not self._device.window.reaches(limit, would_hold)

    def _out_of_memory(
        self, params: AllocParams, *, rejected_in_advance: bool = False
    ) -> OutOfMemory:
        return OutOfMemory(
            requested_bytes=params.orig_size,
            tried_bytes=params.alloc_size,
            capacity_bytes=self._device.capacity_bytes,
            free_bytes=max(0, self._device.free_bytes),
            allowed_bytes=self._device.allowed_bytes(self._fraction),
            allocated_bytes=self._totals.allocated_bytes,
            reserved_bytes=self._totals.reserved_bytes,
            advises_expandable_segments=not self._config.expandable_segments,
            rejected_in_advance=rejected_in_advance,
        )

    # -- frees -------------------------------------------------------------------------------

    def free(self, block: PoolBlock) -> None:
        """Take a block back; it is reusable at once unless other streams use it."""
        block.allocated = False
        size = block.size
        if size >= self._config.max_split_size:
            self.stats.change_oversize_allocations(-1)
        if block.stream_uses:
            self._totals.block_waits(size)
            block.pool.stats.block_waits(size)
            self._insert_events(block)
        else:
            self._totals.block_freed(size, block.requested_size)
            block.pool.stats.block_freed(size, block.requested_size)
            self._free_block(block)

    def _free_block(self, block: PoolBlock) -> None:
        """Move a block into its pool, joined with its free neighbours."""
        pool = block.pool
        split_blocks = split_bytes = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and not neighbour.allocated:
                subsumed = pool.try_merge_blocks(block, neighbour)
                if subsumed:
                    split_blocks -= 1
                    split_bytes -= subsumed
        self._active_blocks.remove(block)
        pool.insert_into_blocks(block)
        if block.expandable_segment is None:
            if block.prev is not None or block.next is not None:
                split_blocks += 1
                split_bytes += block.size
            if split_bytes:
                self._totals.change_inactive_split(split_blocks, split_bytes)
                pool.stats.change_inactive_split(split_blocks, split_bytes)

    # -- other streams -----------------------------------------------------------------------
    #
    # Note [Frees that wait]
    # A block that ``record_stream`` marked is not reusable when the program frees it: an event is
    # recorded on each stream that uses it, and the block stays active until all have finished. The
    # allocator polls the events at every malloc, and waits for all of them before it gives cached
    # memory back. Which stream comes first shows in the peaks of ``inactive_split`` and nowhere
    # else that was compared: ``EventQueues`` keeps upstream's order.

    def record_stream(self, block: PoolBlock, stream: int) -> None:
        """Note that another stream uses the block; its own stream needs no note."""
        if stream == block.stream:
            return
        if block.stream_uses is None:
            block.stream_uses = {}
        block.stream_uses[stream] = None

    def set_events_pending(self, pending: bool) -> None:
        """Say whether events on other streams are unfinished from here on."""
        self._events_pending = pending

    def _insert_events(self, block: PoolBlock) -> None:
        streams, block.stream_uses = block.stream_uses, None
        for stream in streams or ():
            block.event_count += 1
            self._cuda_events.append(stream, block)

    def finish_streams(self, block: PoolBlock) -> None:
        """Free a block that waits, unless pressure has done so."""
        if block.event_count:
            self._cuda_events.remove(block)
            block.event_count = 1
            self._finish_event(block)

    def _process_events(self) -> None:
        """Free the blocks whose events have finished."""
        if not self._events_pending:
            self._finish_events()

    def _synchronize_and_free_events(self) -> None:
        """Wait for all events, then free their blocks."""
        self.stats.num_sync_all_streams += 1
        self._finish_events()

    def _finish_events(self) -> None:
        for block in self._cuda_events.take_all():
            self._finish_event(block)

    def _finish_event(self, block: PoolBlock) -> None:
        block.event_count -= 1
        if block.event_count == 0:
            self._totals.block_waited(block.size, block.requested_size)
            block.pool.stats.block_waited(block.size, block.requested_size)
            self._free_block(block)

    # -- giving cached memory back -----------------------------------------------------------

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the process to a share of the capacity; 1.0 lifts the limit."""
        self._fraction = fraction
        self._garbage_collects = self._config.garbage_collection_threshold > 0.0 and fraction < 1.0

    def _garbage_collect_cached_blocks(self) -> None:
        """Give back the oldest free segments once usage passes the threshold."""
        limit = threshold_of(self._fraction, self._config.garbage_collection_threshold)
        held = self._segments.total_allocated_memory

        def is_enough(released: int) -> bool:
            return self._device.window.reaches(limit, held - released)

        if not is_enough(0):
            private = self._segments.private_streams
            for block in find_old_segments(self._large_blocks, is_enough, private):
                self._segments.release_block(block)

    def _release_available_cached_blocks(self, params: AllocParams) -> bool:
        """Give back blocks above ``max_split_size``, just enough for the request, largest first."""
        max_split_size = self._config.max_split_size
        free_blocks = params.pool.blocks.get(params.stream)
        if not self._config.limits_splits or self._config.expandable_segments or not free_blocks:
            return False
        target_size = max(params.size, max_split_size)
        sufficient = free_blocks.lower_bound(target_size)
        if sufficient is not None:
            self._segments.release_block(sufficient)
            return True
        released = 0
        while released < target_size:
            largest = free_blocks.largest()
            if largest is None or largest.size < max_split_size:
                return False
            released += largest.size
            self._segments.release_block(largest)
        return True

    def empty_cache(self, private_stream: int | None = None) -> None:
        """Give back every segment, and every page, that is entirely free; or one private pool's."""
        self._synchronize_and_free_events()
        self._segments.release_blocks(self._large_blocks, private_stream)
        self._segments.release_blocks(self._small_blocks, private_stream)

    # -- looking in --------------------------------------------------------------------------

    def snapshot(self) -> tuple[SegmentInfo, ...]:
        """Return all segments, by address."""
        return snapshot_segments(
            self._active_blocks, self._small_blocks.all_blocks(), self._large_blocks.all_blocks()
        )

    def check_invariants(self) -> None:
        """Raise ``SimulationError`` if blocks, pools, segments and counters disagree."""
        check_pool_invariants(
            stats=self.stats,
            pools=(self._small_blocks, self._large_blocks),
            active_blocks=self._active_blocks,
        )
