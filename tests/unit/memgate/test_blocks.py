"""Memory events to blocks, and what is odd about them."""

from __future__ import annotations

from memgate.blocks import BlockProblem, BlockSet, MemoryBlock, find_live_sizes, pair_blocks
from memgate.trace import MemoryEvent, Trace


def _pair(*events: tuple[float, int, int]) -> BlockSet:
    memory_events = tuple(MemoryEvent(at, 1, address, size) for at, address, size in events)
    return pair_blocks(
        Trace(memory_events=memory_events, ops=(), module_calls=(), annotations=(), notes={})
    )


def test_an_address_is_used_again_and_again() -> None:
    """Each use is a block of its own; one that is never freed has no end."""
    found = _pair((1, 64, 100), (2, 64, -100), (3, 64, 50))

    assert found.blocks == (MemoryBlock(0, 100, 1, 2, 1), MemoryBlock(1, 50, 3, None, 1))
    assert found.diagnostics == {}


def test_no_events_no_blocks() -> None:
    """Nothing is nothing."""
    assert _pair().blocks == ()


def test_events_are_put_in_the_order_of_time() -> None:
    """And it is told that they were not."""
    found = _pair((2, 64, -100), (1, 64, 100))

    assert found.blocks == (MemoryBlock(0, 100, 1, 2, 1),)
    assert found.diagnostics == {BlockProblem.OUT_OF_ORDER: 1}


def test_a_free_of_older_memory_is_counted() -> None:
    """What was allocated before the trace began has no block."""
    found = _pair((1, 64, -100))

    assert found.blocks == ()
    assert found.diagnostics == {BlockProblem.FREE_OF_OLDER: 1}


def test_a_block_ends_where_its_address_is_given_out_again() -> None:
    """Its own free was not seen."""
    found = _pair((1, 64, 100), (5, 64, 30))

    assert found.blocks == (MemoryBlock(0, 100, 1, 5, 1), MemoryBlock(1, 30, 5, None, 1))
    assert found.diagnostics == {BlockProblem.FREE_NOT_SEEN: 1}


def test_sizes_that_disagree_are_counted() -> None:
    """The allocation is believed."""
    found = _pair((1, 64, 100), (2, 64, -90))

    assert found.blocks == (MemoryBlock(0, 100, 1, 2, 1),)
    assert found.diagnostics == {BlockProblem.OTHER_SIZE: 1}


def test_nothing_asked_for_is_no_block() -> None:
    """And does not end one at the same address."""
    found = _pair((1, 64, 100), (2, 64, 0), (3, 64, -100))

    assert found.blocks == (MemoryBlock(0, 100, 1, 3, 1),)
    assert found.diagnostics == {BlockProblem.NO_BYTES: 1}


def test_live_sizes_are_those_between_allocation_and_free() -> None:
    """At the moment itself a block is not there; moments may come in any order."""
    blocks = [
        MemoryBlock(0, 100, 1, 5, 1),
        MemoryBlock(1, 30, 2, None, 1),
        MemoryBlock(2, 7, 4, 6, 1),
    ]

    assert find_live_sizes(blocks, [5.5, 1, 2, 3, 5]) == [[30, 7], [], [100], [100, 30], [30, 7]]
    assert find_live_sizes(blocks, []) == []
