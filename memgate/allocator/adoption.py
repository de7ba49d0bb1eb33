"""Segments that were there before the first event -> pool blocks, cut as they lay.

Of a program that was not watched from its start. Without this its blocks would lie side by side,
and what was cached between them would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memgate.allocator.pool import BlockPool, PoolBlock
from memgate.allocator.segments import Segments
from memgate.timeline import ResidentSegment


def adopt_segments(
    residents: Sequence[ResidentSegment], segments: Segments, small: BlockPool, large: BlockPool
) -> dict[int, PoolBlock]:
    """Take the segments from the device, cache what is free, return the other blocks by id."""
    placed: dict[int, PoolBlock] = {}
    for resident in residents:
        pool = small if resident.is_small else large
        take = (
            segments.try_allocate_expandable_block
            if resident.is_expandable
            else segments.cuda_malloc
        )
        head = take(pool, resident.size_bytes, resident.stream)
        assert head is not None, "the caller has made sure that there is room"
        sizes = [size for _, size in resident.pieces]
        for (block_id, _), block in zip(resident.pieces, _cut(head, sizes), strict=True):
            if block_id is None:
                segments.cache(block)
            else:
                block.allocated = True  # the next segment does not grow over it
                placed[block_id] = block
    return placed


def _cut(head: PoolBlock, sizes: Sequence[int]) -> Iterator[PoolBlock]:
    """Cut a block into pieces, from its lowest address on."""
    for size in sizes[:-1]:
        piece = PoolBlock(head.stream, size, head.pool, head.ptr, head.expandable_segment)
        piece.splice(head.prev, head)
        head.ptr += size
        head.size -= size
        yield piece
    yield head
