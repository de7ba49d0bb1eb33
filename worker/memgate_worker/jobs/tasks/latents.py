"""What a model of diffusers takes, and how large it is: read off its signature and settings."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

from torch import nn

from memgate.jobspec import JobSpec, ModelSource
from memgate_worker.jobs.steering import Steering
from memgate_worker.jobs.tasks.feed import Feed, refuse_input

#: what a model denoises, or an autoencoder makes again
_MAINS = ("sample", "hidden_states", "x", "input_ids")

#: classes that take videos, and one-dimensional sound
_VIDEO = re.compile(
    "3D|Motion|SpatioTemporal|I2VGen|Video|Mochi|Wan|CogVideoX|Allegro|Magvit|Cosmos"
)
_SOUND = re.compile("1D|StableAudio|Oobleck|Audio")

#: frames come before channels, or channels last
_FRAMES_FIRST = re.compile("CogVideoXT|ConsisIDT|SpatioTemporal")
_CHANNELS_LAST = re.compile("Kandinsky5")

#: arguments that say that a latent is laid out in one row of patches
_ROWS = frozenset({"img_ids", "img_shapes", "rope_interpolation_scale"})

#: how wide the vectors are that describe what is to be made, by the key that says it
_WIDTHS = (
    *("caption_channels", "joint_attention_dim", "text_embed_dim", "text_dim", "cap_feat_dim"),
    *("in_text_dim", "context_in_dim", "text_hidden_dim", "encoder_hidden_size"),
    *("cross_attention_input_dim", "cross_attention_dim", "embedding_dim"),
)

#: how many of them there are, unless a spec says it; U-Nets are given CLIP's text
_LENGTHS = ("max_text_seq_length", "max_sequence_length", "text_len", "num_embeddings")
_CLIP_LENGTH = 77


#: channels of a picture, rather than of a latent
_OF_PIXELS = (1, 3)


def leaves_encoders_out(spec: JobSpec, model: nn.Module) -> bool:
    """Say whether other models make what a job's model is fed with, and may be on the GPU.

    Not for autoencoders, nor for models that make pictures out of nothing but noise.
    """
    if spec.model.source is not ModelSource.DIFFUSERS or spec.input.precomputed:
        return False
    feed = LatentFeed(spec, model.controlnet if isinstance(model, Steering) else model)
    if feed.is_autoencoder:
        return False
    return feed.width is not None or feed.channels not in _OF_PIXELS


class LatentFeed(Feed):
    """A model of diffusers, and the sizes of what it is fed with."""

    def __init__(self, spec: JobSpec, model: nn.Module) -> None:
        self.model: Any = model
        self.config: Any = getattr(model, "config", {})
        self.num_samples = spec.batch_size
        self.input = spec.input
        parameters = inspect.signature(self.model.forward).parameters
        self.takes = frozenset(parameters)
        self.main = next((one for one in _MAINS if one in parameters), "")
        self.requires = frozenset(
            one.name for one in parameters.values() if one.default is one.empty
        ) - {"args", "kwargs"}
        self.name = type(model).__name__

    def setting(self, *names: str, default: Any = None) -> Any:
        """Return the first setting of these names that is not empty."""
        found = (self.config.get(name) for name in names)
        return next((one for one in found if one is not None), default)

    @property
    def is_autoencoder(self) -> bool:
        """It makes again what it is given, instead of taking noise out of it."""
        return self.main == "sample" and not self.takes & {"timestep", "timestep_ratio"}

    @property
    def is_row(self) -> bool:
        """The model takes a latent as one row of patches."""
        return bool(_ROWS & self.takes)

    @property
    def num_dimensions(self) -> int:
        """Of one sample."""
        if self.name == "PriorTransformer":
            return 1
        if _SOUND.search(self.name):
            return 2
        return 4 if _VIDEO.search(self.name) else 3

    @property
    def channels_at(self) -> int:
        """Which dimension of a sample its channels are."""
        if _CHANNELS_LAST.search(self.name):
            return self.num_dimensions - 1
        return 1 if _FRAMES_FIRST.search(self.name) else 0

    @property
    def channels(self) -> int | None:
        """Of a sample, as the model takes it."""
        if self.is_autoencoder:  # some cut images into patches, which have more
            return None
        found: int | None = self.setting("in_channels", "in_visual_dim")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one latent; for an autoencoder, of one image.

        Raises:
            InputError: if neither the spec nor the configuration says it, or it does not suit the
                model.
        """
        shape = self.input.sample_shape or self._own_shape()
        if shape is None:
            raise refuse_input(
                "shape", None, f"the configuration of {self.name} does not say it", self._example()
            )
        if len(shape) != self.num_dimensions:
            rule = f"{self.name} takes {self.num_dimensions} dimensions"
            raise refuse_input("shape", list(shape), rule, self._example())
        channels, wanted = shape[self.channels_at], self.channels
        is_right = wanted is None or wanted == channels
        if self.is_row and wanted is not None:  # patches of four, or of one
            is_right = is_right or wanted == 4 * channels
        if not is_right:
            rule = f"{self.name} takes {wanted} channels"
            raise refuse_input("shape", list(shape), rule, self._example())
        return shape

    def _example(self) -> str:
        what = "image" if self.is_autoencoder else "latent"
        order = ["channels", *["frames", "height", "width"][-self.num_dimensions + 1 :]]
        if self.num_dimensions < 3:
            order = ["channels", "length"][: self.num_dimensions]
        order.insert(self.channels_at, order.pop(0))
        return f"give that of one {what}: [{', '.join(order)}]"

    def _own_shape(self) -> tuple[int, ...] | None:
        channels = self.channels
        if self.num_dimensions == 1:
            return (self.setting("embedding_dim"),)
        if self.name == "CogVideoXTransformer3DModel":
            frames = (self.config.sample_frames - 1) // self.config.temporal_compression_ratio + 1
            return (frames, channels or 0, self.config.sample_height, self.config.sample_width)
        if self.name == "AllegroTransformer3DModel":
            sizes = (self.config[f"sample_{one}"] for one in ("frames", "height", "width"))
            return (channels or 0, *sizes)
        size = self.setting("sample_size")
        if size is None or channels is None or self.is_row:
            return None
        sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
        if self.num_dimensions == 2:
            return (channels, sides[0])
        if self.num_dimensions == 3:
            return (channels, *sides)
        frames = self.setting("video_length", "num_frames")
        if frames is None:
            return None
        return (frames, channels, *sides) if self.channels_at == 1 else (channels, frames, *sides)

    @property
    def grid(self) -> tuple[int, ...]:
        """How many patches there are each way, of a latent in one row."""
        channels, *sides = self.shape
        patch = math.isqrt((self.channels or channels) // channels)
        return (*sides[:-2], sides[-2] // patch, sides[-1] // patch)

    @property
    def laid_out(self) -> tuple[int, ...]:
        """The shape of one latent as the model takes it."""
        if not self.is_row:
            return self.shape
        return (math.prod(self.grid), self.channels or self.shape[0])

    @property
    def width(self) -> int | None:
        """Of the vectors that describe what is to be made; None if it takes none."""
        if self.setting("encoder_hid_dim_type") in (None, "text_proj"):
            found = self.setting("encoder_hid_dim", *_WIDTHS)
        else:
            found = self.setting(*_WIDTHS)
        return found[0] if isinstance(found, list | tuple) else found

    @property
    def length(self) -> int:
        """How many of them there are.

        Raises:
            InputError: if neither the spec nor the configuration says it.
        """
        if self.input.length is not None:
            return self.input.length
        own = self.setting(*_LENGTHS, default=_CLIP_LENGTH if self.main == "sample" else None)
        if own is None:
            rule = f"{self.name} is told by text what to make, and its length decides what it needs"
            raise refuse_input("sequence_length", None, rule, "give it, in tokens")
        return int(own)
