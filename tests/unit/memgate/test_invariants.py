"""The invariants notice broken books: otherwise a fixture that checks them checks nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memgate.allocator.pool import PoolBlock
from memgate.errors import SimulationError
from tests.builders import Bench, mib


def _size_is_no_multiple(bench: Bench, block: PoolBlock) -> None:
    block.size += 1


def _gap(bench: Bench, block: PoolBlock) -> None:
    block.size += 512


def _free_block_in_use(bench: Bench, block: PoolBlock) -> None:
    block.allocated = False


def _request_exceeds_block(bench: Bench, block: PoolBlock) -> None:
    block.requested_size = block.size + 1


def _stream_changed(bench: Bench, block: PoolBlock) -> None:
    block.stream = 5


def _neighbour_forgotten(bench: Bench, block: PoolBlock) -> None:
    assert block.next is not None
    block.next.prev = None


def _neighbour_mixed_up(bench: Bench, block: PoolBlock) -> None:
    assert block.next is not None
    block.next.prev = block.next


def _pool_holds_a_used_block(bench: Bench, block: PoolBlock) -> None:
    block.pool.insert_into_blocks(block)


def _counter_off(bench: Bench, block: PoolBlock) -> None:
    bench.stats.large_pool.allocated_bytes += 512


def _total_off(bench: Bench, block: PoolBlock) -> None:
    bench.stats.all.reserved_bytes += 512
    bench.stats.all.peak_reserved_bytes += 512


def _peak_below_current(bench: Bench, block: PoolBlock) -> None:
    bench.stats.all.peak_allocation = 0


def _peak_above_the_pools(bench: Bench, block: PoolBlock) -> None:
    bench.stats.all.peak_segment = 9


@pytest.mark.parametrize(
    ("breaks", "want_rule"),
    [
        (_size_is_no_multiple, "sizes are multiples of 512"),
        (_gap, "blocks of a segment leave no gap"),
        (_free_block_in_use, "an active block is used"),
        (_request_exceeds_block, "a block is as large as the request"),
        (_stream_changed, "a segment belongs to one stream"),
        (_neighbour_forgotten, "neighbours know each other"),
        (_neighbour_mixed_up, "neighbours know each other"),
        (_pool_holds_a_used_block, "a block in a pool is free"),
        (_counter_off, "allocated_bytes says"),
        (_total_off, "pools' reserved_bytes add up"),
        (_peak_below_current, "allocation is at most its peak"),
        (_peak_above_the_pools, "the peak of segment is at most"),
    ],
)
def test_a_broken_rule_is_named(breaks: Callable[[Bench, PoolBlock], None], want_rule: str) -> None:
    """Each rule, broken on purpose."""
    bench = Bench()
    block = bench.malloc(mib(3))
    bench.malloc(mib(4))
    bench.allocator.check_invariants()

    breaks(bench, block)

    with pytest.raises(SimulationError, match=want_rule):
        bench.allocator.check_invariants()
