"""The device under the allocator."""

from __future__ import annotations

from memgate.allocator.device import AddressPolicy, Device
from memgate.allocator.events import EventQueues
from memgate.allocator.pool import BlockPool, PoolBlock
from memgate.allocator.stats import PoolStats


def test_a_range_is_placed_as_the_policy_says() -> None:
    """Above all others, below all others, or where the lowest one of its size was."""
    up, down, reuse = (
        Device(capacity_bytes=100, address_policy=policy)
        for policy in (AddressPolicy.UP, AddressPolicy.DOWN, AddressPolicy.REUSE)
    )

    assert up.place_range(10) < up.place_range(10)
    assert down.place_range(10) > down.place_range(10)
    first, second, _ = (reuse.place_range(10) for _ in range(3))
    reuse.release_range(second, 10)
    reuse.release_range(first, 10)
    assert reuse.place_range(20) not in (first, second)
    assert [reuse.place_range(10), reuse.place_range(10)] == [first, second]


def test_waiting_blocks_come_in_the_order_of_upstreams_table() -> None:
    """Two streams share a slot of the small table; with a third it doubles and they part."""
    pool = BlockPool(is_small=True, stats=PoolStats())
    blocks = {stream: PoolBlock(stream, 512, pool, 512 * stream) for stream in (0, 1, 2, 3)}

    def order(*streams: int) -> list[int]:
        for stream in streams:
            queues.append(stream, blocks[stream])
        return [block.stream for block in queues.take_all()]

    queues = EventQueues()
    assert order(1, 2) == [1, 2]
    assert order(2, 1) == [2, 1]
    assert order(1, 3, 2, 0) == [0, 3, 2, 1]
    assert order(1, 2) == [2, 1], "the table never shrinks"
