"""Runs a part of a model for the shapes of what it returns: without weights, and hardly any time.

Floating-point tensors live on torch's ``meta`` device, where they have shapes and no contents.
Whole numbers are computed: models read sizes of images and positions out of them. Those that would
come out of an image are made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map_only

_META = torch.device("meta")

#: these take positions and masks from the CPU, and need what they hold
_INDEXING = frozenset({"index", "index_put", "index_put_", "_unsafe_index"})

_NOT_FOUND = frozenset({"eq", "isnan", "isinf", "logical_not", "bitwise_not"})


class _ShapesOnly(TorchDispatchMode):
    """Computes with nothing that comes out of weights or images."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if tree_any(_is_on_meta, (args, named)):
            name = func.overloadpacket.__name__
            moved = _weights_on_meta if name in _INDEXING else _on_meta
            args, named = tree_map_only(torch.Tensor, moved, (args, named))
            made = func(*args, **named)
            return tree_map_only(torch.Tensor, lambda one: _make_up(name, one), made)
        if named.get("device") is not None:
            named["device"] = torch.device("cpu")
        return func(*args, **named)


class _NumbersOnHost(TorchFunctionMode):
    """Has numbers of Python's become tensors that hold them, wherever they are wanted."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and "device" in named:
            named["device"] = torch.device("cpu")
        return func(*args, **named)


def _make_up(operator: str, made: torch.Tensor) -> torch.Tensor:
    """Have whole numbers and truths that come out of an image, so that they can be computed with.

    A check finds what it looks for, no two numbers are equal, and nothing is padding.
    """
    if made.is_floating_point() or made.is_complex() or not _is_on_meta(made):
        return made
    is_found = made.dtype is torch.bool and operator not in _NOT_FOUND
    return torch.full(made.shape, int(is_found), dtype=made.dtype, device="cpu")


def _is_on_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device == _META


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_META)


def _weights_on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Leave positions and masks where they are: how many there are decides on the shape."""
    return _on_meta(tensor) if tensor.is_floating_point() else tensor


def _without_contents(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_META) if tensor.is_floating_point() else tensor


class _Method(nn.Module):
    """A method of a model, as something that can be called with other weights."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self._name = name

    def forward(self, **inputs: Any) -> Any:
        return getattr(self.model, self._name)(**inputs)


def run_for_shapes(model: nn.Module, method: str, inputs: Mapping[str, Any]) -> Any:
    """Return what a method of a model returns, with shapes and no contents.

    Raises:
        Exception: whatever the model raises, which may be anything; if it needs what a tensor
            holds, too.
    """
    called = _Method(model, method)
    state = chain(called.named_parameters(), called.named_buffers())
    weights = {name: _without_contents(tensor.detach()) for name, tensor in state}
    given = tree_map_only(torch.Tensor, _without_contents, dict(inputs))
    with _unchanged(model), torch.no_grad(), _NumbersOnHost(), _ShapesOnly():
        return functional_call(called, weights, kwargs=given)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Have a model forget what it keeps for its next call: tables of positions, without contents.

    What ``functional_call`` puts into a model it takes out itself.
    """
    before = [(vars(one), dict(vars(one)), dict(one._buffers)) for one in model.modules()]
    try:
        yield
    finally:
        for attributes, kept, buffers in before:
            attributes.clear()
            attributes.update(kept)
            attributes["_buffers"].clear()
            attributes["_buffers"].update(buffers)
