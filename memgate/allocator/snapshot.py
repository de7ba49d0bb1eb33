"""Pool blocks -> segments, as ``torch.cuda.memory_snapshot()`` lists them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from memgate.allocator.pool import PoolBlock
from memgate.allocator.protocol import SegmentInfo


def snapshot_segments(*groups: Iterable[PoolBlock]) -> tuple[SegmentInfo, ...]:
    """List the segments that the given mapped blocks make up, lowest address first.

    An expandable segment counts once for each stretch of it that has memory behind it.
    """
    heads = (block for block in chain(*groups) if block.prev is None or not block.prev.mapped)
    return tuple(sorted(map(_segment_from, heads), key=lambda segment: segment.address))


def blocks_of_segment(head: PoolBlock) -> list[PoolBlock]:
    """Return the mapped blocks from the first one of a segment on."""
    blocks = []
    block: PoolBlock | None = head
    while block is not None and block.mapped:
        blocks.append(block)
        block = block.next
    return blocks


def _segment_from(head: PoolBlock) -> SegmentInfo:
    blocks = blocks_of_segment(head)
    segment = head.expandable_segment
    return SegmentInfo(
        address=head.ptr if segment is None else segment.address_of(head.ptr),
        total_size=sum(block.size for block in blocks),
        allocated_size=sum(block.size for block in blocks if block.allocated),
        active_size=sum(block.size for block in blocks if not block.is_free),
        is_large=not head.pool.is_small,
        is_expandable=segment is not None,
        stream=head.stream,
        num_blocks=len(blocks),
    )
