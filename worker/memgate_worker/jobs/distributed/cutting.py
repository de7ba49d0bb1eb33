"""A model of transformers -> the stages of a pipeline, as one rank has them.

Each stage is the model itself, with the layers of other stages taken out: transformers' own code
makes masks and positions, and runs what is left. Only models whose configuration says which parts
a pipeline may be cut between (``base_model_pp_plan``) are cut.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from memgate.errors import InputError, UnsupportedJobError
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.distributed.sharding import forget_weights

#: what a plan must name, in this order
_PARTS = ("embed_tokens", "layers", "norm")


class StagePlace(NamedTuple):
    """Which of how many stages one is."""

    number: int
    total: int

    @property
    def is_first(self) -> bool:
        """It is fed tokens."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """It computes the loss."""
        return self.number == self.total - 1

    def span(self, num_layers: int) -> tuple[int, int]:
        """Return its first layer, and the first of the next: the first stages get one more."""
        usual, more = divmod(num_layers, self.total)
        begin = self.number * usual + min(self.number, more)
        return begin, begin + usual + (self.number < more)


class Stage(nn.Module):
    """A part of a model, from tokens or hidden states to hidden states or logits."""

    def __init__(self, model: nn.Module, place: StagePlace) -> None:
        """Keep the layers of one stage."""
        super().__init__()
        self.place = place
        self.model = model
        inner = _inner(model)
        begin, end = place.span(len(inner.layers))
        inner.layers = inner.layers[begin:end]
        config: Any = inner.config
        config.num_hidden_layers = end - begin
        if getattr(config, "layer_types", None):  # read by place, not by the layer's number
            config.layer_types = config.layer_types[begin:end]
        if not place.is_first:
            inner.embed_tokens = nn.Identity()
        if not place.is_last:
            inner.norm = nn.Identity()
            self.model = inner

    def forward(self, given: torch.Tensor, **more: Any) -> torch.Tensor:
        """Run the stage's layers."""
        name = "input_ids" if self.place.is_first else "inputs_embeds"
        made = self.model(**{name: given}, **more, use_cache=False)
        found: torch.Tensor = made.logits if self.place.is_last else made.last_hidden_state
        return found


def cut(model: nn.Module, indices: Sequence[int], count: int) -> list[Stage]:
    """Return some of the stages of a model, on ``meta``.

    Raises:
        UnsupportedJobError: if transformers does not say where it may be cut, or its parts share
            weights.
        InputError: if it has fewer layers than there are stages.
    """
    _check(model, count)
    forget_weights(model)
    _check_what_lies_between(model)
    return [Stage(copy.deepcopy(model), StagePlace(index, count)) for index in indices]


def _inner(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


def _check(model: Any, count: int) -> None:
    kind = type(model).__name__
    plan = getattr(getattr(model, "config", None), "base_model_pp_plan", None)
    if tuple(plan or ()) != _PARTS or model.get_output_embeddings() is None:
        raise UnsupportedJobError(
            f"distributed: transformers has no plan of {kind} for pipelines of language models, and"
            " memgate does not make one up; use your own script instead of a spec: memgate run"
        )
    inner = _inner(model)
    if model.get_output_embeddings().weight is inner.embed_tokens.weight:
        raise UnsupportedJobError(
            f"distributed: the first and the last stage of {kind} would share a weight"
            " (tie_word_embeddings), which torch.distributed.pipelining does not keep the same; use"
            " a model without, or your own script: memgate run"
        )
    if count > len(inner.layers):
        mistake = Mistake(
            field="distributed.world_size",
            value=show_value(count),
            rule=f"the model has {len(inner.layers)} layers, and there are {count} stages",
            next_step="give fewer GPUs",
        )
        raise InputError.from_mistakes(mistake)


def _check_what_lies_between(model: Any) -> None:
    """Check that a model without layers hands on what it is given.

    Some scale embeddings on the way to the first layer: each stage would do so again.
    """
    bare = copy.deepcopy(_inner(model))
    bare.layers, bare.norm = nn.ModuleList(), nn.Identity()
    bare.config.num_hidden_layers = 0
    given = torch.zeros(1, 2, bare.config.hidden_size, dtype=bare.dtype)
    if bare(inputs_embeds=given, use_cache=False).last_hidden_state is not given:
        raise UnsupportedJobError(
            f"distributed: {type(model).__name__} computes something between its embeddings and its"
            " layers, which memgate would repeat in each stage; use your own script instead of a"
            " spec: memgate run"
        )
