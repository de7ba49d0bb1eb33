"""How many parts flash-attn splits keys into, if there are too few queries to fill a GPU.

Each part has an output of its own, in fp32, which are joined at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: queries that a block of threads of these kernels takes
_BLOCK_QUERIES = 64
_MAX_SPLITS = 128

#: a GPU that is so full is full enough
_FULL = 0.8
#: the fewest splits that come so near to the best
_GOOD_ENOUGH = 0.85


def round_up(number: int, multiple: int) -> int:
    """Return the next multiple of a number."""
    return -(-number // multiple) * multiple


def round_head_dim(head_dim: int) -> int:
    """Return the head dimension that the kernels compute with."""
    return round_up(head_dim, 32 if head_dim <= 128 else 64)


def num_multiprocessors() -> int:
    """Return how many the present device has."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def allocate_splits(
    q: Tensor, *, batch: int, heads: int, queries: int, keys: int, dropout: float, splits: int = 0
) -> list[Tensor]:
    """Allocate what the parts compute into; nothing if there is one part."""
    if dropout > 0:  # not implemented for it
        return []
    head_dim = q.shape[-1]
    if splits < 1:
        block_keys = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
        blocks = batch * heads * -(-queries // _BLOCK_QUERIES)
        splits = find_splits(blocks, 2 * num_multiprocessors(), -(-keys // block_keys))
    if splits <= 1:
        return []
    shape = (splits, batch, heads, queries)
    return [
        q.new_empty(shape, dtype=torch.float32),
        q.new_empty((*shape, round_head_dim(head_dim)), dtype=torch.float32),
    ]


def find_splits(blocks: int, places: int, key_blocks: int) -> int:
    """Return the smallest number of splits that uses a GPU almost as well as the best."""
    if blocks >= _FULL * places:
        return 1
    most = min(_MAX_SPLITS, places, key_blocks)
    usable = [
        splits
        for splits in range(1, most + 1)
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1))
    ]
    waves = {splits: blocks * splits / places for splits in usable}
    used = {splits: count / -(-count // 1) for splits, count in waves.items()}
    best = max(used.values(), default=0.0)
    return next((splits for splits in usable if used[splits] >= _GOOD_ENOUGH * best), 1)
