"""Which cached segments are old enough to be given back: ``garbage_collection_threshold``."""

from __future__ import annotations

from collections.abc import Callable, Collection

from memgate.allocator.pool import BlockPool, PoolBlock


def find_old_segments(
    pool: BlockPool, is_enough: Callable[[int], bool], private_streams: Collection[int]
) -> list[PoolBlock]:
    """Return free segments until they add up to enough bytes, the oldest first.

    Those of private pools stay.
    """
    freeable = [
        block
        for block in pool.all_blocks()
        if block.expandable_segment is None
        and not block.is_split
        and block.stream not in private_streams
    ]
    total_age = sum(pool.gc_count(block) for block in freeable)
    found: list[PoolBlock] = []
    found_size = 0
    while not is_enough(found_size) and freeable:
        # Blocks older than the average go, all of them, even beyond the target: collecting
        # rarely is worth more than keeping them.
        age_threshold = total_age / len(freeable)
        old = [block for block in freeable if pool.gc_count(block) >= age_threshold]
        freeable = [block for block in freeable if pool.gc_count(block) < age_threshold]
        found += old
        found_size += sum(block.size for block in old)
        total_age -= sum(pool.gc_count(block) for block in old)
    return found
