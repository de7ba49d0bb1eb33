"""The ordered pool of free blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memgate.allocator.pool import BlockPool, FreeBlocks, PoolBlock
from memgate.allocator.stats import PoolStats


def _block(size: int, ptr: int) -> PoolBlock:
    return PoolBlock(0, size, BlockPool(is_small=True, stats=PoolStats()), ptr)


def test_an_empty_pool_has_nothing_to_give() -> None:
    """Nothing found is None, not an error."""
    free_blocks = FreeBlocks()

    assert free_blocks.lower_bound(0) is None
    assert free_blocks.largest() is None
    assert list(free_blocks) == []


def test_what_follows_a_block_is_what_ranks_above_it() -> None:
    """Size first, then address."""
    free_blocks = FreeBlocks()
    blocks = [_block(512, 7), _block(512, 9), _block(1024, 1)]
    for block in reversed(blocks):
        free_blocks.add(block)

    assert list(free_blocks.following(blocks[0])) == blocks[1:]
    assert free_blocks.largest() is blocks[2]


_ranks = st.tuples(st.integers(1, 40), st.integers(0, 400))


@given(st.lists(st.tuples(st.booleans(), _ranks), max_size=3000), st.integers(0, 45))
def test_a_pool_behaves_like_a_sorted_list(
    steps: list[tuple[bool, tuple[int, int]]], size: int
) -> None:
    """However blocks come and go, order, best fit and count are those of a plain sorted list."""
    free_blocks = FreeBlocks()
    blocks: dict[tuple[int, int], PoolBlock] = {}
    for adds, rank in steps:
        if adds and rank not in blocks:
            blocks[rank] = _block(*rank)
            free_blocks.add(blocks[rank])
        elif not adds and rank in blocks:
            free_blocks.remove(blocks.pop(rank))

    in_order = [blocks[rank] for rank in sorted(blocks)]
    assert list(free_blocks) == in_order
    assert len(free_blocks) == len(in_order)
    assert free_blocks.largest() is (in_order[-1] if in_order else None)
    fits = [block for block in in_order if block.size >= size]
    assert free_blocks.lower_bound(size) is (fits[0] if fits else None)
    for at, block in enumerate(in_order[:3]):
        assert list(free_blocks.following(block)) == in_order[at + 1 :]


def test_a_large_pool_is_cut_into_chunks_and_joined_again() -> None:
    """Thousands of blocks are found and removed in order, forwards and backwards."""
    for sign in (1, -1):
        free_blocks = FreeBlocks()
        blocks = [_block(512 * (1 + index % 7), 512 * index) for index in range(5000)]
        for block in blocks[::sign]:
            free_blocks.add(block)
        in_order = sorted(blocks, key=lambda block: (block.size, block.ptr))

        assert list(free_blocks) == in_order
        for block in in_order[::sign]:
            assert free_blocks.lower_bound(block.size) is not None
            free_blocks.remove(block)
        assert len(free_blocks) == 0


def test_a_best_fit_is_found_across_a_chunks_end() -> None:
    """With the largest blocks of a chunk gone, the first of the next chunk is the best fit."""
    free_blocks = FreeBlocks()
    blocks = [_block(512 * (1 + index), 0) for index in range(600)]
    for block in blocks:
        free_blocks.add(block)
    for block in blocks[100:300]:
        free_blocks.remove(block)

    assert all(free_blocks.lower_bound(block.size) is blocks[300] for block in blocks[100:300])
