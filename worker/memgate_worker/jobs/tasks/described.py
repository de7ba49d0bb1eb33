"""Tensors that a model requires and ``inputs`` does not know: made as its docstring says."""

from __future__ import annotations

import math
from typing import Any

import torch

from memgate_worker.jobs.tasks.feed import Feed
from memgate_worker.jobs.tasks.task import Batch

#: pixels of a patch on each side, for models that do not say
_PATCH = 16


def add_required(feed: Feed, batch: Batch) -> Batch:
    """Add what a model requires besides: what its docstring describes.

    Raises:
        UnsupportedJobError: if it does not, or by sizes that are not known.
    """
    lacking = (feed.requires | feed.demands.used) - batch.keys()
    found = {name: make_described(feed, batch, name) for name in sorted(lacking)}
    missing = [name for name, one in found.items() if one is None and name in feed.requires]
    if missing:
        raise feed.refuse(f"it requires {', '.join(missing)}")
    return batch | {name: one for name, one in found.items() if one is not None}


def make_described(feed: Feed, batch: Batch, name: str) -> torch.Tensor | None:
    """Make a tensor as the docstring describes it, if its sizes are known."""
    described = feed.described.get(name)
    if described is None:
        return None
    sizes = _sizes(feed, batch)
    shape = [_size(feed, sizes, one) for one in described.shape]
    if any(size is None for size in shape):
        return None
    if "mask" in name:  # a few are said to be of numbers, and used as truth; nothing is left out
        return torch.ones(*shape, dtype=torch.bool)
    dtype = getattr(torch, described.dtype)
    if dtype.is_floating_point and name.endswith(_WHOLE):  # said to be any kind of tensor
        dtype = torch.int64
    return torch.zeros(*shape, dtype=dtype)


#: ends of names of what is looked up in a table
_WHOLE = ("_ids", "_codes")


def _size(feed: Feed, sizes: dict[str, int], said: str) -> int | None:
    """Return a size by a number, a name or a product of them; None if it is not known."""
    factors = [
        int(one) if one.isdecimal() else sizes.get(one, feed.setting(one.removeprefix("config.")))
        for one in (part.strip() for part in said.split("*"))
    ]
    return math.prod(factors) if all(isinstance(one, int) for one in factors) else None


def _sizes(feed: Feed, batch: Batch) -> dict[str, int]:
    """Return the sizes of a batch by the names that docstrings have for them."""
    channels, height, width = feed.image_shape[-3:]
    length = batch["input_ids"].shape[-1] if "input_ids" in batch else feed.length
    regions = batch["visual_embeds"].shape[1] if "visual_embeds" in batch else 0
    return {
        "batch_size": feed.num_samples,
        "sequence_length": length,
        "text_seq_len": length,
        "visual_sequence_length": regions,
        "total_sequence_length": length + regions,
        "num_channels": channels,
        "height": height,
        "width": width,
        "image_size": height,
        "max_num_images": 1,
        "num_patches": num_patches(feed),
        "image_num_patches": num_patches(feed),
    }


def num_patches(feed: Feed) -> int:
    """Return how many patches a model cuts an image into."""
    _, height, width = feed.image_shape[-3:]
    patch: Any = feed.setting("patch_size", default=_PATCH)
    down, across = patch[-2:] if isinstance(patch, list | tuple) else (patch, patch)
    count = (height // down) * (width // across)
    tubelets = feed.setting("tubelet_size")
    return count * math.ceil(feed.setting("num_frames") / tubelets) if tubelets else count
