"""Text with images in it: as many placeholders as an image has features.

How many that is follows from the model alone. So the part of it that looks at images is run for one
image on torch's ``meta`` device, where tensors have shapes and no contents.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from memgate_worker.jobs.tasks.feed import Feed, refuse_input
from memgate_worker.jobs.tasks.task import Batch, each_tensor

#: what is said about an image, in tokens, where no length is given
_WORDS = 128


def place_images(feed: Feed, batch: Batch) -> Batch:
    """Put the placeholders of an image into each text of a batch.

    Raises:
        InputError: if the text is too short for an image.
        UnsupportedJobError: if it is not known how many features an image has.
    """
    token = feed.setting("image_token_id", "image_token_index")
    if token is None or not {"input_ids", "pixel_values"} <= batch.keys():
        return batch
    pixels = {name: batch[name][:1] for name in ("pixel_values", *_BESIDE) if name in batch}
    num_tokens = _count_features(feed, pixels)
    length = feed.input.sequence_length
    if length is not None and length < num_tokens + 2:
        raise refuse_input(
            "sequence_length",
            length,
            f"an image takes {num_tokens} tokens of this model's text",
            f"give at least {num_tokens + 2}, or a smaller 'shape'",
        )
    tokens = feed.tokens(feed.num_samples, length or num_tokens + _WORDS)
    tokens[:, :num_tokens] = token
    mask = torch.ones_like(tokens)
    mask[:, -1] = 0
    masks = {"attention_mask": mask} if "attention_mask" in feed.takes else {}
    kinds = {}
    if "mm_token_type_ids" in feed.takes:
        kinds["mm_token_type_ids"] = (tokens == token).long()
    return batch | {"input_ids": tokens} | masks | kinds


#: what some models are told about their images
_BESIDE = ("image_sizes", "image_grid_thw", "pixel_attention_mask", "spatial_shapes")


class _Method(nn.Module):
    """A method of a model, as something that can be called with other weights."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self._name = name

    def forward(self, **inputs: Any) -> Any:
        return getattr(self.model, self._name)(**inputs)


def _count_features(feed: Feed, pixels: Batch) -> int:
    owner = next((one for one in _owners(feed.model) if hasattr(one, "get_image_features")), None)
    if owner is None:
        raise feed.refuse("it is not known how many tokens an image takes")
    method = _Method(owner, "get_image_features")
    state = chain(method.named_parameters(), method.named_buffers())
    weights = {name: tensor.detach().to("meta") for name, tensor in state}
    try:
        with torch.no_grad():
            features = functional_call(
                method, weights, kwargs={name: one.to("meta") for name, one in pixels.items()}
            )
    except Exception as error:
        raise feed.refuse(
            f"how many tokens an image takes ({type(error).__name__}: {error})"
        ) from error
    found = getattr(features, "pooler_output", features)
    width = feed.setting("hidden_size", "d_model")
    made = [one for one in each_tensor(found) if one.shape[-1] == width] or list(each_tensor(found))
    return sum(one.shape[:-1].numel() for one in made)


def _owners(model: Any) -> list[Any]:
    return [one for one in (getattr(model, "model", None), model) if one is not None]
