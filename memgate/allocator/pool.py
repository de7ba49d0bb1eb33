"""Pool blocks, and the ordered pools in which the free ones wait.

A **pool block** is a piece of a segment; the pieces of a segment form a doubly linked list in
address order. A pool keeps its free pieces by stream, size and address, so that the best fit is the
first one found. What is handed out, split or given back is decided in ``caching.py``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memgate.allocator.expandable import ExpandableSegment
    from memgate.allocator.stats import PoolStats

#: a block's rank is its size, then its address: one int compares faster than a tuple of two
_ADDRESS_BITS = 72

#: a chunk is cut in two at this length: inserting stays cheap however many blocks are free
_CHUNK_LENGTH = 512


class PoolBlock:
    """A piece of a segment (upstream's ``Block``)."""

    __slots__ = (
        "allocated",
        "event_count",
        "expandable_segment",
        "gc_count_base",
        "mapped",
        "next",
        "pool",
        "prev",
        "ptr",
        "rank",
        "requested_size",
        "size",
        "stream",
        "stream_uses",
    )

    def __init__(
        self,
        stream: int,
        size: int,
        pool: BlockPool,
        ptr: int,
        expandable_segment: ExpandableSegment | None = None,
    ) -> None:
        #: the stream it was allocated for; it never serves another
        self.stream = stream
        self.size = size
        self.requested_size = 0
        self.pool = pool
        self.ptr = ptr
        #: where ``FreeBlocks`` sorts it, while it is in there
        self.rank = 0
        #: the program holds it
        self.allocated = False
        #: backed by memory; False only for the empty address range of an expandable segment
        self.mapped = True
        self.prev: PoolBlock | None = None
        self.next: PoolBlock | None = None
        #: CUDA events that must finish before the block may be reused
        self.event_count = 0
        #: the pool's ``get_free_blocks_call_count`` when the block was freed
        self.gc_count_base = 0
        #: other streams that use it, by ``record_stream``; None if there are none
        self.stream_uses: dict[int, None] | None = None
        self.expandable_segment = expandable_segment

    @property
    def is_split(self) -> bool:
        """The block is a part of a segment, not all of it."""
        return self.prev is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        """Neither the program nor a stream uses it: it may be handed out or merged."""
        return not self.allocated and not self.event_count and not self.stream_uses

    @property
    def is_tail(self) -> bool:
        """The empty addresses up to the end of an expandable segment: more on a larger device."""
        segment = self.expandable_segment
        return not self.mapped and segment is not None and self.ptr + self.size == segment.end

    def splice(self, before: PoolBlock | None, after: PoolBlock | None) -> None:
        """Link the block between two neighbours."""
        if before is not None:
            before.next = self
        self.prev = before
        if after is not None:
            after.prev = self
        self.next = after


class FreeBlocks:
    """The free blocks of one stream in one pool, ordered by size, then address.

    A sorted list in chunks: finding, adding and removing cost two binary searches and a move of at
    most ``_CHUNK_LENGTH`` numbers.
    """

    __slots__ = ("_blocks", "_bounds", "_chunks")

    def __init__(self) -> None:
        self._blocks: dict[int, PoolBlock] = {}
        #: ranks in order, cut into lists; none is empty unless it is the only one
        self._chunks: list[list[int]] = [[]]
        #: chunk i holds the ranks up to bound i, the last chunk the rest
        self._bounds: list[int] = []

    def add(self, block: PoolBlock) -> None:
        """Put a block in its place."""
        block.rank = rank = block.size << _ADDRESS_BITS | block.ptr
        self._blocks[rank] = block
        at = bisect_left(self._bounds, rank)
        chunk = self._chunks[at]
        insort(chunk, rank)
        if len(chunk) > _CHUNK_LENGTH:
            half = len(chunk) // 2
            self._chunks.insert(at, chunk[:half])
            self._bounds.insert(at, chunk[half - 1])
            del chunk[:half]

    def remove(self, block: PoolBlock) -> None:
        """Take a block out; its size and address must be those it was added with."""
        rank = block.rank
        del self._blocks[rank]
        at = bisect_left(self._bounds, rank)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, rank)]
        if not chunk and self._bounds:
            del self._chunks[at]
            del self._bounds[min(at, len(self._bounds) - 1)]

    def lower_bound(self, size: int) -> PoolBlock | None:
        """Return the smallest block of at least ``size``, the lowest address of those."""
        rank = size << _ADDRESS_BITS
        at = bisect_left(self._bounds, rank)
        chunk = self._chunks[at]
        within = bisect_left(chunk, rank)
        if within < len(chunk):
            return self._blocks[chunk[within]]
        if at < len(self._bounds):
            return self._blocks[self._chunks[at + 1][0]]
        return None

    def following(self, block: PoolBlock) -> Iterator[PoolBlock]:
        """Yield the blocks after ``block``, in order; the pool must not change meanwhile."""
        at = bisect_left(self._bounds, block.rank)
        within = bisect_left(self._chunks[at], block.rank) + 1
        for chunk in self._chunks[at:]:
            for rank in chunk[within:]:
                yield self._blocks[rank]
            within = 0

    def largest(self) -> PoolBlock | None:
        """Return the largest block, the highest address of those."""
        last = self._chunks[-1]
        return self._blocks[last[-1]] if last else None

    def __iter__(self) -> Iterator[PoolBlock]:
        """Yield all blocks in order, from a copy: the caller may remove them as it goes."""
        return iter([self._blocks[rank] for chunk in self._chunks for rank in chunk])

    def __len__(self) -> int:
        return len(self._blocks)


class BlockPool:
    """All free blocks of one kind, small or large."""

    __slots__ = ("blocks", "get_free_blocks_call_count", "is_small", "stats", "unmapped")

    def __init__(self, *, is_small: bool, stats: PoolStats) -> None:
        self.is_small = is_small
        self.stats = stats
        #: free blocks with memory behind them, by stream
        self.blocks: dict[int, FreeBlocks] = {}
        #: empty address ranges of expandable segments, by stream, lowest first
        self.unmapped: dict[int, list[PoolBlock]] = {}
        #: how often the pool was searched; the age of a block is counted in searches
        self.get_free_blocks_call_count = 0

    def insert_into_blocks(self, block: PoolBlock) -> None:
        """Add a free block, and note when it came."""
        block.gc_count_base = self.get_free_blocks_call_count
        free_blocks = self.blocks.get(block.stream)
        if free_blocks is None:
            free_blocks = self.blocks[block.stream] = FreeBlocks()
        free_blocks.add(block)

    def erase(self, block: PoolBlock) -> None:
        """Take a free block out."""
        self.blocks[block.stream].remove(block)

    def try_merge_blocks(self, dst: PoolBlock, src: PoolBlock | None) -> int:
        """Join a free neighbour into ``dst``; return the neighbour's size, or 0 if not possible."""
        # ``is_free``, written out: this is done for two neighbours at every free
        if src is None or src.allocated or src.event_count or src.stream_uses:
            return 0
        if dst.mapped != src.mapped:
            return 0
        if src.mapped:
            self.erase(src)
        else:
            self.erase_unmapped(src)
        if dst.prev is src:
            dst.ptr = src.ptr
            dst.prev = src.prev
            if dst.prev is not None:
                dst.prev.next = dst
        else:
            dst.next = src.next
            if dst.next is not None:
                dst.next.prev = dst
        dst.size += src.size
        return src.size

    def gc_count(self, block: PoolBlock) -> int:
        """Return the age of a free block: searches since it was freed."""
        return self.get_free_blocks_call_count - block.gc_count_base

    def all_blocks(self) -> list[PoolBlock]:
        """Return the free blocks of all streams, by stream, size, address."""
        return [block for stream in sorted(self.blocks) for block in self.blocks[stream]]

    def insert_unmapped(self, block: PoolBlock) -> None:
        """Add an empty address range."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_placed_at)

    def erase_unmapped(self, block: PoolBlock) -> None:
        """Take an empty address range out."""
        unmapped = self.unmapped[block.stream]
        del unmapped[bisect_left(unmapped, _placed_at(block), key=_placed_at)]


def _placed_at(block: PoolBlock) -> int:
    """Return where the driver put a block of an expandable segment."""
    assert block.expandable_segment is not None
    return block.expandable_segment.address_of(block.ptr)
