"""Finds tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

#: in arguments that are nested this deep
_MAX_DEPTH = 4


def find_tensors(path: str, given: Any, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in an argument, each with the path to it."""
    if isinstance(given, torch.Tensor):
        yield path, given
    elif depth < _MAX_DEPTH and isinstance(given, (list, tuple)):
        for position, value in enumerate(given):
            yield from find_tensors(f"{path}.{position}", value, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(given, Mapping):
        for name, value in given.items():
            yield from find_tensors(f"{path}.{name}", value, depth + 1)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor; of a nested one that of what it holds, which lies in a row."""
    return tuple((tensor.values() if tensor.is_nested else tensor).shape)
