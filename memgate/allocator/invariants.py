"""What must hold between blocks, pools, segments and counters, whatever happened before.

Checked at the end of every test that uses an allocator and by property tests; never in a replay.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from memgate.allocator.pool import BlockPool, PoolBlock
from memgate.allocator.sizes import MIN_BLOCK_SIZE
from memgate.allocator.snapshot import blocks_of_segment
from memgate.allocator.stats import COUNTERS, DeviceStats, PoolStats
from memgate.errors import SimulationError


def check_pool_invariants(
    *,
    stats: DeviceStats,
    pools: Collection[BlockPool],
    active_blocks: Collection[PoolBlock],
) -> None:
    """Raise ``SimulationError`` naming the first rule that does not hold."""
    for pool in pools:
        active = [block for block in active_blocks if block.pool is pool]
        free = pool.all_blocks()
        _check_blocks(active, free)
        _check_neighbours([*active, *free])
        _check_counters(pool.stats, active, free)
    _check_sums(stats)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise SimulationError(f"allocator invariant broken: {rule}")


def _check_blocks(active: list[PoolBlock], free: list[PoolBlock]) -> None:
    for block in active:
        _require(not block.is_free, "an active block is used by the program or a stream")
        _require(block.requested_size <= block.size, "a block is as large as the request")
    for block in free:
        _require(block.is_free and block.mapped, "a block in a pool is free and mapped")
    for block in [*active, *free]:
        _require(block.size > 0 and block.size % MIN_BLOCK_SIZE == 0, "sizes are multiples of 512")


def _check_neighbours(blocks: list[PoolBlock]) -> None:
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    in_segments = 0
    for head in heads:
        chain = blocks_of_segment(head)
        in_segments += len(chain)
        for left, right in pairwise(chain):
            _require(right.prev is left, "neighbours know each other")
            _require(left.ptr + left.size == right.ptr, "blocks of a segment leave no gap")
            _require(not (left.is_free and right.is_free), "free neighbours are merged")
            _require(left.stream == right.stream, "a segment belongs to one stream")
    _require(in_segments == len(blocks), "every block is part of one segment")


def _check_counters(stats: PoolStats, active: list[PoolBlock], free: list[PoolBlock]) -> None:
    allocated = [block for block in active if block.allocated]
    stranded = [block for block in free if block.is_split and block.expandable_segment is None]
    counted = {
        "allocation": len(allocated),
        "allocated_bytes": sum(block.size for block in allocated),
        "active": len(active),
        "active_bytes": sum(block.size for block in active),
        "requested_bytes": sum(block.requested_size for block in active),
        "reserved_bytes": sum(block.size for block in [*active, *free]),
        "inactive_split": len(stranded),
        "inactive_split_bytes": sum(block.size for block in stranded),
    }
    for name, count in counted.items():
        kept = getattr(stats, name)
        _require(kept == count, f"{name} says {kept}, the blocks add up to {count}")


def _check_sums(stats: DeviceStats) -> None:
    totals = stats.all
    for name in COUNTERS:
        current, peak = getattr(totals, name), getattr(totals, f"peak_{name}")
        pools = (stats.small_pool, stats.large_pool)
        _require(current <= peak, f"{name} is at most its peak")
        _require(current == sum(getattr(pool, name) for pool in pools), f"pools' {name} add up")
        peaks = sum(getattr(pool, f"peak_{name}") for pool in pools)
        _require(peak <= peaks, f"the peak of {name} is at most the sum of the pools' peaks")
    _require(
        totals.requested_bytes <= totals.active_bytes <= totals.reserved_bytes,
        "requested <= active <= reserved",
    )
    _require(totals.allocated_bytes <= totals.active_bytes, "allocated <= active")
