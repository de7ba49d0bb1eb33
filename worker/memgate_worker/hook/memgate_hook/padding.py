"""Batches, however they are nested: their tensors, and the same batch with tensors made longer.

Padding repeats the last element, so that values stay valid: tokens, classes, positions in a table.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Callable

import torch
from torch.nn.utils.rnn import PackedSequence

from .lengths import Plan, SeenBatchTensor

#: in batches that are nested this deep
_MAX_DEPTH = 4

#: what a batch holds beside tensors
_PLAIN = (str, bytes, int, float, type(None))

_LENGTH_TYPES = (torch.int16, torch.int32, torch.int64)


class UnknownBatchError(Exception):
    """A batch has something in it that cannot be padded; the message names it."""


def find_batch_tensors(batch: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch, each by its place.

    Raises:
        UnknownBatchError: if there is something that may hold others.
    """
    return dict(_find("", batch, depth=0))


def _find(place: str, given: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(given, torch.Tensor) and given.layout is torch.strided and not given.is_nested:
        yield place, given
    elif depth < _MAX_DEPTH and not isinstance(given, PackedSequence) and _is_nest(given):
        for name, value in _items(given):
            yield from _find(_join(place, name), value, depth + 1)
    elif not isinstance(given, _PLAIN):
        raise UnknownBatchError(f"a batch has a {type(given).__name__} in it")


def see_tensor(tensor: torch.Tensor) -> SeenBatchTensor:
    """Return what is compared of a tensor."""
    may_be_lengths = tensor.dim() == 1 and tensor.dtype in _LENGTH_TYPES and tensor.numel() > 0
    on_cpu = tensor.device.type == "cpu"
    top = int(tensor.max()) if may_be_lengths and on_cpu else None
    return SeenBatchTensor(tuple(tensor.shape), top)


def pad_batch(batch: Any, plan: Plan) -> Any:
    """Return a batch whose tensors are as long as a plan has them."""
    return _replace("", batch, lambda place, tensor: pad_tensor(place, tensor, plan))


def _replace(place: str, given: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(given, torch.Tensor):
        return change(place, given)
    if not _is_nest(given):
        return given
    changed = [(name, _replace(_join(place, name), value, change)) for name, value in _items(given)]
    if isinstance(given, Mapping):
        filled: Any = copy.copy(given)
        for name, value in changed:
            filled[name] = value
        return filled
    values = [value for _, value in changed]
    return type(given)(*values) if hasattr(given, "_fields") else type(given)(values)


def pad_tensor(place: str, tensor: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Return a tensor as long as a plan has the one at its place."""
    for dimension, size in plan.sizes.get(place, {}).items():
        if 0 < tensor.shape[dimension] < size:
            index = torch.arange(size, device=tensor.device)
            tensor = tensor.index_select(dimension, index.clamp_(max=tensor.shape[dimension] - 1))
    if place in plan.values:
        tensor = torch.full_like(tensor, plan.values[place])
    return tensor


def _is_nest(given: Any) -> bool:
    return isinstance(given, (Mapping, list, tuple))


def _items(nest: Any) -> Iterator[tuple[object, Any]]:
    return iter(nest.items() if isinstance(nest, Mapping) else enumerate(nest))


def _join(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)
