"""What a model of transformers takes, and how large it is: read off its signature and settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import JobSpec
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.tasks.demands import read_demands, read_descriptions

#: what follows a model's family in the name of its class
_TASK = re.compile(r"For([A-Z]\w*)$")

#: parts of a configuration that are configurations of their own, those of text first
_PARTS = re.compile(r"_config$|^(encoder|decoder|generator|question_encoder|backbone)$")

#: tokens with a meaning, which plain text does not have
_SPECIAL = re.compile(r"_token_id$|_token_index$|^(pad|bos|eos|sep|cls|mask|unk)_index$")

_IMAGE_SIZES = ("image_size", "img_size", "input_size", "max_img_size")

#: what tokens people use if a tokenizer has none for padding
_PAD = 0


class Feed:
    """A model of transformers, and the sizes of what it is fed with."""

    def __init__(self, spec: JobSpec, model: nn.Module) -> None:
        self.model: Any = model
        self.config: Any = model.config
        self.num_samples = spec.batch_size
        self.input = spec.input
        #: sequences are full, so that there is no padding
        self.is_packed = spec.packing
        found = _TASK.search(type(model).__name__)
        self.task = found.group(1) if found else ""
        parameters = inspect.signature(self.model.forward).parameters
        self.takes = frozenset(parameters)
        self.annotations = {name: str(one.annotation) for name, one in parameters.items()}
        main = self.model.main_input_name
        self.mains = frozenset([main] if isinstance(main, str) else main)
        self.demands = read_demands(type(self.model).forward)
        self.described = read_descriptions(type(self.model).forward)
        self.requires = self.takes & self.demands.required | frozenset(
            one.name
            for one in parameters.values()
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        )

    def setting(self, *names: str, default: Any = None) -> Any:
        """Return the first setting of these names, here or in a part of the configuration."""
        for config in self.configs():
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def configs(self) -> Iterator[Any]:
        """Yield the configuration, then its parts."""
        waiting = [self.config]
        while waiting:
            config = waiting.pop(0)
            yield config
            parts = [part for name, part in vars(config).items() if _PARTS.search(name)]
            waiting += [part for part in parts if hasattr(part, "to_dict")]

    @property
    def length(self) -> int:
        """Of sequences, in tokens."""
        if self.input.length is not None:
            return self.input.length
        most = self.setting("max_position_embeddings", "n_positions", "max_seq_len", default=128)
        return max(2, min(128, most if most > 0 else 128))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        if self.input.sample_shape is not None:
            return self.input.sample_shape
        of_timm = self.setting("model_args", default={})
        size = self.setting(*_IMAGE_SIZES, default=of_timm.get("img_size", 224))
        height, width = size[-2:] if isinstance(size, list | tuple) else (size, size)
        if "prompt_pixel_values" in self.takes:  # put above the image: the size is that of both
            height //= 2
        return (self.setting("num_channels", "in_channels", "in_chans", default=3), height, width)

    @property
    def token(self) -> int:
        """A token of plain text."""
        special = {
            token
            for config in self.configs()
            for name, value in vars(config).items()
            if _SPECIAL.search(name)
            for token in (value if isinstance(value, list | tuple) else [value])
        }
        return next(token for token in range(len(special) + 1) if token not in special)

    @property
    def pad_token(self) -> int:
        """The token for padding, made up where there is none: models look for it."""
        pad = self._within(self.setting("pad_token_id", default=_PAD))
        of_text = [config for config in self.configs() if hasattr(config, "vocab_size")]
        for config in (self.config, *of_text):
            if getattr(config, "pad_token_id", None) is None:
                config.pad_token_id = pad
        return pad

    def _within(self, token: int) -> int:
        """Take another token for one that a vocabulary made smaller no longer has."""
        size = self.setting("vocab_size")
        return token if not isinstance(size, int) or token < size else 0

    def tokens(self, *shape: int) -> torch.Tensor:
        """Make sentences with an end and, as in every batch of text, some padding."""
        tokens = torch.full(shape, self.token, dtype=torch.int64)
        if self.is_packed:
            return tokens
        end = self.setting("eos_token_id")
        if end is not None and shape[-1] > 1:
            tokens[..., -2] = self._within(end[0] if isinstance(end, list | tuple) else end)
        tokens[..., -1] = max(self.pad_token, 0)
        question = self.setting("question_token_id")
        if question is not None:  # each text has one, and the model looks for it
            tokens[..., 0] = question
        return tokens

    def for_all(self, one: torch.Tensor) -> torch.Tensor:
        """Repeat what belongs to one sample for all of a batch."""
        return one.repeat(self.num_samples, *[1] * (one.dim() - 1))

    def settle(self) -> None:
        """Choose what a published configuration has, and a bare one lacks."""
        _ = self.pad_token
        if not self.config.is_encoder_decoder:
            return
        begin = self.setting("decoder_start_token_id")
        if begin is None:
            begin = self.setting("bos_token_id", default=self.pad_token)
        for config in (self.config, getattr(self.config, "decoder", None)):
            if config is not None and getattr(config, "decoder_start_token_id", None) is None:
                config.decoder_start_token_id = begin

    def refuse(self, missing: str) -> UnsupportedJobError:
        """Say what the model takes that we cannot make."""
        name = type(self.model).__name__
        return UnsupportedJobError(
            f"memgate cannot make what {name} is trained with: {missing}. That is a limit of"
            " memgate's, and says nothing about the job; describe it in 'input.tensors', or ask"
            " about the command that trains it (memgate run --gpu GPU -- COMMAND)"
        )


def refuse_input(field: str, value: object, rule: str, step: str) -> InputError:
    """Say that a model does not take what a spec gives."""
    mistake = Mistake(field=f"input.{field}", value=show_value(value), rule=rule, next_step=step)
    return InputError.from_mistakes(mistake)
