"""Finds tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch import nn

#: in arguments that are nested this deep
_MAX_DEPTH = 4

#: of an object, so many values are looked at
_MAX_VALUES = 64


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


def find_tensors_in_objects(path: str, given: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a batch of a class of the job's own: what its attributes hold.

    Attributes are looked up where objects keep them, so no code of the job runs.
    """
    waiting, num_seen = [(path, given)], 0
    while waiting and num_seen < _MAX_VALUES:
        path, value = waiting.pop(0)
        num_seen += 1
        if isinstance(value, (list, tuple, Mapping)):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting += [(f"{path}.{name}", one) for name, one in islice(items, _MAX_VALUES)]
        elif isinstance(value, torch.Tensor):
            yield path, value
        elif not isinstance(value, (type, ModuleType, nn.Module)):
            held = islice(getattr(value, "__dict__", {}).items(), _MAX_VALUES)
            slots = getattr(type(value), "__slots__", ())
            waiting += [(f"{path}.{name}", one) for name, one in held]
            waiting += [
                (f"{path}.{name}", getattr(value, name))
                for name in ([slots] if isinstance(slots, str) else slots)
                if isinstance(getattr(type(value), name, None), MemberDescriptorType)
                and hasattr(value, name)
            ]


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor; of a nested one that of what it holds, which lies in a row."""
    return tuple((tensor.values() if tensor.is_nested else tensor).shape)
