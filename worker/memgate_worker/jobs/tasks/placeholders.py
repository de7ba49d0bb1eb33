"""Text with images in it: as many placeholders as an image has features.

How many that is, and how an image is laid out for it, follows from the model alone: the part that
looks at images is run for one image, in one layout after the other, without computing anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from memgate_worker.jobs.tasks.demands import read_descriptions
from memgate_worker.jobs.tasks.feed import Feed, refuse_input
from memgate_worker.jobs.tasks.shapes import run_for_shapes
from memgate_worker.jobs.tasks.task import Batch, each_tensor

#: what is said about an image, in tokens, where no length is given
_WORDS = 128

#: the most pieces that an image is cut into
_MAX_TILES = 16

#: which tokens stand for images
_KINDS = ("mm_token_type_ids", "moe_mm_token_type_ids", "token_type_ids")

#: where images go, for models without a token for them
_MARKS = frozenset({"image_embeds_position_mask"})

_COUNTS = "get_image_features"


def place_images(feed: Feed, batch: Batch) -> Batch:
    """Put an image into each text of a batch, and its placeholders.

    Raises:
        InputError: if the text is too short for an image.
        UnsupportedJobError: if it is not known how many features an image has.
    """
    token = feed.setting("image_token_id", "image_token_index")
    marked = feed.takes & _MARKS
    if (token is None and not marked) or not {"input_ids", "pixel_values"} <= batch.keys():
        return batch
    if any(map(_puts_images_into_text, feed.model.modules())):
        image, num_tokens = _look_at_one(feed, batch)
    elif marked and (queries := feed.setting("latent_query_num")) is not None:
        image, num_tokens = {}, queries  # it asks for as many features, whatever the image
    else:
        return batch
    length = feed.input.length
    if length is not None and length < num_tokens + 2:
        raise refuse_input(
            "sequence_length",
            length,
            f"an image takes {num_tokens} tokens of this model's text",
            f"give at least {num_tokens + 2}, or a smaller 'shape'",
        )
    tokens = feed.tokens(feed.num_samples, length or num_tokens + _WORDS)
    is_image = torch.arange(tokens.shape[1]).expand_as(tokens) < num_tokens
    if token is not None:
        tokens[is_image] = token
    placed: Batch = {"input_ids": tokens}
    if "attention_mask" in feed.takes:
        placed["attention_mask"] = torch.ones_like(tokens)
        placed["attention_mask"][:, -1] = 0
    placed |= {name: is_image.long() for name in _KINDS if name in feed.takes}
    placed |= {name: is_image.long() for name in marked}
    images = {name: feed.for_all(one) for name, one in image.items() if name in feed.takes}
    return batch | placed | images


def _puts_images_into_text(module: nn.Module) -> bool:
    """Tell such a model from one that compares images with text, and has a token for them too."""
    return hasattr(module, _COUNTS) or hasattr(module, "get_placeholder_mask")


def _look_at_one(feed: Feed, batch: Batch) -> tuple[Batch, int]:
    """Return an image as the model takes it, and how many tokens stand for it."""
    owner = next((one for one in feed.model.modules() if hasattr(one, _COUNTS)), None)
    if owner is None:
        raise feed.refuse("it is not known how many tokens an image takes")
    wanted = inspect.signature(getattr(owner, _COUNTS)).parameters
    takes_more = any(one.kind is one.VAR_KEYWORD for one in wanted.values())
    beside = {name: one[:1] for name, one in batch.items() if name in wanted}
    why_not = ""
    for image in _layouts(feed, owner):
        given = beside | {
            name: one
            for name, one in image.items()
            if name in wanted or (takes_more and name in feed.takes)
        }
        try:
            features = run_for_shapes(owner, _COUNTS, given)
        except Exception as error:  # the model's own code: it may raise anything
            why_not = why_not or f"{type(error).__name__}: {error}"
            continue
        return image, _count(feed, features)
    raise feed.refuse(f"how many tokens an image takes ({why_not})")


def _count(feed: Feed, features: Any) -> int:
    """Return how many vectors of the width of a token there are."""
    pooled = getattr(features, "pooler_output", None)
    found = features if pooled is None else pooled
    if hasattr(found, "last_hidden_state"):
        found = found.last_hidden_state
    width = feed.model.get_input_embeddings().weight.shape[-1]
    made = [one for one in each_tensor(found) if one.shape[-1] == width] or list(each_tensor(found))
    return sum(one.shape[:-1].numel() for one in made)


def _layouts(feed: Feed, owner: nn.Module) -> Iterator[Batch]:
    """Yield one image in all the ways that models take it, those that the arguments name first."""
    channels, height, width = feed.image_shape[-3:]
    if "image_grid_thw" in feed.takes:
        yield from _as_grid(feed, channels, height, width)
    described = read_descriptions(type(owner).forward).get("pixel_values")
    if described is not None and len(described.shape) == 2:  # the patches of all images in a row
        rows = as_patches(feed, (channels, height, width))["pixel_values"]
        yield {"pixel_values": rows.flatten(0, 1)}
    if feed.takes & {"spatial_shapes", "image_position_ids"}:
        yield as_patches(feed, (channels, height, width))
    sizes = {"image_sizes": torch.tensor([[height, width]])}
    whole = {"pixel_values": torch.ones(1, channels, height, width)} | _second_looks(feed)
    yield whole
    yield whole | sizes | {"pixel_mask": torch.ones(1, height, width).bool()}
    for tiles in range(1, _MAX_TILES + 1):
        yield {
            "pixel_values": torch.ones(1, tiles, channels, height, width),
            "pixel_attention_mask": torch.ones(1, tiles, height, width).bool(),
            **sizes,
        }
    yield as_patches(feed, (channels, height, width))


def _second_looks(feed: Feed) -> Batch:
    """Return the same image as further parts of a model look at it, each in its own size."""
    looks = {}
    for name in feed.takes:
        part = getattr(feed.config, f"{name.removesuffix('_pixel_values')}_vision_config", None)
        if part is not None and name.endswith("_pixel_values"):
            side = _side(part.image_size)
            looks[name] = torch.ones(1, feed.image_shape[-3], side, side)
    return looks


def _as_grid(feed: Feed, channels: int, height: int, width: int) -> Iterator[Batch]:
    """Yield the patches of an image in rows, with how many there are each way."""
    patch = _side(feed.setting("patch_size", default=16))
    merged = _side(feed.setting("spatial_merge_size", "merge_size", default=1))
    down, across = (max(1, side // (patch * merged)) * merged for side in (height, width))
    beside = {
        "image_grid_thw": torch.tensor([[1, down, across]]),
        "image_merge_sizes": torch.tensor([merged]),
        "images_per_sample": torch.tensor([1]),
    }
    count = down * across
    for times in (feed.setting("temporal_patch_size", default=1), 1, 2):  # frames of a patch
        yield {"pixel_values": torch.ones(count, channels * times * patch**2), **beside}
    yield {"pixel_values": torch.ones(count, channels, patch, patch), **beside}


def as_patches(feed: Feed, shape: tuple[int, ...]) -> Batch:
    """Return the patches of an image in rows of a sample, with where each of them is."""
    channels, height, width = shape
    patch = _side(feed.setting("patch_size", default=16))
    down, across = height // patch, width // patch
    places = torch.cartesian_prod(torch.arange(down), torch.arange(across))
    return {
        "pixel_values": torch.ones(1, down * across, channels * patch**2),
        "spatial_shapes": torch.tensor([[down, across]]),
        "pixel_attention_mask": torch.ones(1, down * across, dtype=torch.int64),
        "image_position_ids": places.unsqueeze(0),
    }


def _side(size: Any) -> int:
    side: int = size[-1] if isinstance(size, list | tuple) else size
    return side
