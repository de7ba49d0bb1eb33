"""How far a free block of an expandable segment can grow, and which of them fits best."""

from __future__ import annotations

from memgate.allocator.pool import FreeBlocks, PoolBlock


def tightest_fit(block: PoolBlock, free_blocks: FreeBlocks) -> PoolBlock:
    """Return a later block if it fits more tightly than one that can still grow.

    A free block of an expandable segment counts with the size it can grow to.
    """
    if _expandable_size(block) == block.size:
        return block
    for later in free_blocks.following(block):
        if _grows_as_large(later, block):
            break
        block = later
    return block


def _grows_as_large(block: PoolBlock, other: PoolBlock) -> bool:
    """Say whether a free block can grow to the size that another one can.

    How far it is to the end of a segment depends on the device, and where only one of them can grow
    to its end, so does the answer.
    """
    more = _expandable_size(block) - _expandable_size(other)
    at_end = _grows_to_the_end(block)
    if at_end == _grows_to_the_end(other):
        return more >= 0
    segment = block.expandable_segment
    assert segment is not None
    if at_end:
        return segment.reaches(segment.size - more)
    return not segment.reaches(segment.size + more + 1)


def _grows_to_the_end(block: PoolBlock) -> bool:
    return block.next is not None and block.next.is_tail


def _expandable_size(block: PoolBlock) -> int:
    """Return the size a free block can grow to."""
    following = block.next
    if following is not None and not following.mapped:
        return block.size + following.size
    return block.size
