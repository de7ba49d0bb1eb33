"""What a model of diffusers is told besides a latent: the time, a text, sizes, positions.

Made by the names of the arguments of its ``forward``. An argument that its configuration has no use
for is left out; contents never matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch

from memgate_worker.jobs.tasks.latents import LatentFeed
from memgate_worker.jobs.tasks.task import Batch

#: tokens of an image that CLIP has looked at
_CLIP_PATCHES = 257

#: numbers in the time_ids of SDXL: sizes and crops
_NUM_TIME_IDS = 6

#: of the images that T5 describes to HunyuanDiT, and what it is told about their sizes
_T5_LENGTH = 256
_META_SIZE = 6


#: take a mask, and are trained without it
_WITHOUT_MASK = frozenset({"LatteTransformer3DModel", "StableAudioDiTModel"})


def make_conditions(feed: LatentFeed, given: Collection[str] = ()) -> Batch:
    """Make everything but the latent and what is ``given``.

    Raises:
        InputError: if a size is missing in the spec.
        UnsupportedJobError: if the model requires what we cannot make.
    """
    made: Batch = {}
    for name, make in _MAKERS.items():
        if name in feed.takes:
            value = make(feed)
            if value is not None:
                made[name] = value
    missing = feed.requires - made.keys() - {feed.main, *given}
    if missing:
        raise feed.refuse(f"it requires {', '.join(sorted(missing))}")
    return made


def _per_sample(feed: LatentFeed, *shape: int) -> torch.Tensor:
    return torch.zeros(feed.num_samples, *shape)


def _times(feed: LatentFeed) -> torch.Tensor:
    """Return a step of a schedule, of which U-Nets have whole ones."""
    times = _per_sample(feed)
    return times.long() if feed.main == "sample" else times


def _text(feed: LatentFeed) -> torch.Tensor | None:
    if feed.width is None:
        return None
    if "added_time_ids" in feed.takes:  # an image that CLIP has looked at, not a text
        return _per_sample(feed, 1, feed.width)
    if feed.name == "UNetMotionModel":  # whose pipeline repeats it for each frame
        return torch.zeros(feed.num_samples * feed.shape[1], feed.length, feed.width)
    return _per_sample(feed, feed.length, feed.width)


def _text_mask(feed: LatentFeed) -> torch.Tensor | None:
    """Return which tokens count; most U-Nets are trained without, their text has one length."""
    is_left_out = feed.main == "sample" and feed.name != "Kandinsky3UNet"
    if is_left_out or feed.width is None or feed.name in _WITHOUT_MASK:
        return None
    return torch.ones(feed.num_samples, feed.length, dtype=torch.int64)


def _text_of_t5(feed: LatentFeed) -> torch.Tensor | None:
    width = feed.setting("cross_attention_dim_t5", "text_embed_dim_t5")
    if width is None:
        return None
    return _per_sample(feed, feed.setting("text_len_t5", default=_T5_LENGTH), width)


def _mask_of_t5(feed: LatentFeed) -> torch.Tensor:
    length = feed.setting("text_len_t5", default=_T5_LENGTH)
    return torch.ones(feed.num_samples, length, dtype=torch.int64)


def _pooled(feed: LatentFeed) -> torch.Tensor | None:
    width = feed.setting("pooled_projection_dim", "in_text_dim2")
    return None if width is None else _per_sample(feed, width)


def _guidance(feed: LatentFeed) -> torch.Tensor | None:
    return _per_sample(feed) if feed.setting("guidance_embeds") else None


def _image_ids(feed: LatentFeed) -> torch.Tensor:
    return torch.zeros(math.prod(feed.grid), len(feed.setting("axes_dims_rope", default=(0, 0, 0))))


def _text_ids(feed: LatentFeed) -> torch.Tensor:
    return torch.zeros(feed.length, len(feed.setting("axes_dims_rope", default=(0, 0, 0))))


def _image_shapes(feed: LatentFeed) -> list[list[tuple[int, ...]]]:
    return [[(1, *feed.grid)] for _ in range(feed.num_samples)]


def _classes(feed: LatentFeed) -> torch.Tensor | None:
    kind = feed.setting("class_embed_type")
    if kind in ("projection", "simple_projection"):
        return _per_sample(feed, feed.setting("projection_class_embeddings_input_dim"))
    is_wanted = kind is not None or feed.setting("num_class_embeds") is not None
    is_wanted = is_wanted or feed.setting("norm_type") == "ada_norm_zero"
    return _per_sample(feed).long() if is_wanted else None


def _added(feed: LatentFeed) -> Batch | None:
    """Return what SDXL and PixArt are told about sizes."""
    kind = feed.setting("addition_embed_type")
    if kind == "text_time":
        embedded = _NUM_TIME_IDS * feed.setting("addition_time_embed_dim")
        width = feed.setting("projection_class_embeddings_input_dim") - embedded
        times = _per_sample(feed, _NUM_TIME_IDS)
        return {"text_embeds": _per_sample(feed, width), "time_ids": times}
    if kind is not None or feed.setting("encoder_hid_dim_type") not in (None, "text_proj"):
        raise feed.refuse(f"what {kind or feed.setting('encoder_hid_dim_type')!r} adds")
    if feed.setting("norm_type") != "ada_norm_single":
        return None
    # the model itself decides where its configuration does not say it
    if not getattr(feed.model, "use_additional_conditions", False):
        return {"resolution": None, "aspect_ratio": None}
    return {"resolution": _per_sample(feed, 2), "aspect_ratio": _per_sample(feed, 1)}


def _video_ids(feed: LatentFeed) -> torch.Tensor:
    width = feed.setting("projection_class_embeddings_input_dim")
    return _per_sample(feed, width // feed.setting("addition_time_embed_dim"))


def _rotary(feed: LatentFeed) -> list[torch.Tensor] | torch.Tensor | None:
    """Return the angles of positions, as the pipeline of the model makes them."""
    head, patch = feed.setting("attention_head_dim"), feed.setting("patch_size", default=1)
    *_, height, width = feed.shape
    places = (height // patch) * (width // patch)
    if feed.name == "CogVideoXTransformer3DModel":
        if not feed.setting("use_rotary_positional_embeddings"):
            return None
        frames = feed.shape[0] // feed.setting("patch_size_t", default=1)
        return [torch.zeros(frames * places, head) for _ in range(2)]
    if feed.name == "HunyuanDiT2DModel":
        return [torch.zeros(places, head) for _ in range(2)]
    if feed.name == "LuminaNextDiT2DModel":
        heads = feed.setting("num_attention_heads")
        head = feed.setting("hidden_size") // heads
        return torch.zeros(384, 384, head // 2, dtype=torch.complex64)
    if feed.name == "AllegroTransformer3DModel":
        return _rotary_of_allegro(feed, places)
    return None


def _rotary_of_allegro(feed: LatentFeed, places: int) -> list[list[torch.Tensor]]:
    frames = feed.shape[1]
    third = feed.setting("attention_head_dim") // 3
    sides = (frames, *(side // feed.setting("patch_size") for side in feed.shape[2:]))
    angles = [torch.zeros(2, side, third) for side in sides]
    return [
        [list(one) for one in angles],
        [torch.zeros(1, frames * places, dtype=torch.int64) for _ in sides],
    ]


def _sizes(feed: LatentFeed) -> torch.Tensor:
    return _per_sample(feed, 2)


def _meta_size(feed: LatentFeed) -> torch.Tensor | None:
    is_told = feed.setting("use_style_cond_and_image_meta_size")
    return _per_sample(feed, _META_SIZE) if is_told else None


def _style(feed: LatentFeed) -> torch.Tensor | None:
    is_told = feed.setting("use_style_cond_and_image_meta_size")
    return _per_sample(feed).long() if is_told else None


def _side(index: int) -> Callable[[LatentFeed], int | None]:
    """Return how many patches a row has one way, for models that are told it."""
    return lambda feed: feed.grid[index] if feed.is_row else None


def _image(feed: LatentFeed) -> torch.Tensor | None:
    width = feed.setting("image_dim")
    return None if width is None else _per_sample(feed, _CLIP_PATCHES, width)


def _padding(feed: LatentFeed) -> torch.Tensor | None:
    return torch.zeros(1, 1, *feed.shape[-2:]) if feed.setting("concat_padding_mask") else None


def _positions(feed: LatentFeed) -> list[torch.Tensor]:
    patches = feed.setting("patch_size", default=(1, 1, 1))
    sides = zip(feed.shape[:3], patches, strict=True)
    return [torch.arange(side // patch) for side, patch in sides]


def _cascade(*keys: str, tokens: int = 1) -> Callable[[LatentFeed], torch.Tensor | None]:
    def make(feed: LatentFeed) -> torch.Tensor | None:
        width = feed.setting(*keys)
        return None if width is None else _per_sample(feed, tokens, width)

    return make


def _vector(*keys: str) -> Callable[[LatentFeed], torch.Tensor | None]:
    def make(feed: LatentFeed) -> torch.Tensor | None:
        width = feed.setting(*keys)
        return None if width is None else _per_sample(feed, width)

    return make


_MAKERS: dict[str, Callable[[LatentFeed], Any]] = {
    "timestep": _times,
    "timestep_ratio": lambda feed: _per_sample(feed),
    "t": lambda feed: _per_sample(feed),
    "encoder_hidden_states": _text,
    "encoder_attention_mask": _text_mask,
    "encoder_hidden_states_mask": _text_mask,
    "encoder_mask": _text_mask,
    "text_embedding_mask": _text_mask,
    "encoder_hidden_states_t5": _text_of_t5,
    "text_embedding_mask_t5": _mask_of_t5,
    "cap_feats": lambda feed: [
        torch.zeros(feed.length, feed.width) for _ in range(feed.num_samples)
    ],
    "pooled_projections": _pooled,
    "pooled_text_emb": _vector("cond_embed_dim"),
    "micro_conds": lambda feed: _per_sample(feed, 5),
    "guidance": _guidance,
    "img_ids": _image_ids,
    "txt_ids": _text_ids,
    "img_shapes": _image_shapes,
    "class_labels": _classes,
    "added_cond_kwargs": _added,
    "added_time_ids": _video_ids,
    "image_rotary_emb": _rotary,
    "cross_attention_kwargs": lambda feed: {} if feed.name == "LuminaNextDiT2DModel" else None,
    "rotary_embedding": lambda feed: [
        torch.zeros(feed.shape[-1] + 1, feed.setting("attention_head_dim") // 2) for _ in range(2)
    ],
    "original_size": _sizes,
    "target_size": _sizes,
    "crop_coords": _sizes,
    "image_meta_size": _meta_size,
    "style": _style,
    "num_frames": _side(0),
    "height": _side(1),
    "width": _side(2),
    "encoder_hidden_states_image": _image,
    "padding_mask": _padding,
    "visual_rope_pos": _positions,
    "text_rope_pos": lambda feed: torch.arange(feed.length),
    "clip_text_pooled": _cascade("clip_text_pooled_in_channels"),
    "clip_text": _cascade("clip_text_in_channels", tokens=77),
    "clip_img": _cascade("clip_image_in_channels"),
    "proj_embedding": _vector("embedding_proj_dim", "embedding_dim"),
    "global_hidden_states": _cascade("global_states_input_dim"),
    "image_latents": lambda feed: _per_sample(feed, *feed.shape),
    "image_embeddings": _vector("cross_attention_dim"),
    "fps": lambda feed: _per_sample(feed) if "fps" in feed.requires else None,
}
