"""Which tensors of a script would be on the GPU, if there were one. Needs torch.

On the CPU all tensors are alike. What a script moves to ``cuda`` or makes there is remembered, and
so is what is computed from it. It is remembered by its storage, which views, parameters and tied
weights share, and nothing is held: what the script gives up is gone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import UninitializedTensorMixin

#: so many storages may be gone before they are forgotten
_MAX_GONE = 4096


class Resident(NamedTuple):
    """A tensor on the device."""

    storage: StorageWeakRef
    size_bytes: int
    #: of a parameter
    num_elements: int

    @property
    def is_gone(self) -> bool:
        """Nothing holds it any longer."""
        return bool(self.storage.expired())


class PretendedDevice:
    """What would be on the GPU, in the order in which it got there."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._residents: dict[int, Resident] = {}
        #: the profiler sees what gets there from now on
        self.is_recorded = False
        self._num_before_clearing = _MAX_GONE

    def __bool__(self) -> bool:
        """Say whether the script has used it."""
        return bool(self._residents)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor is there."""
        storage = _storage(tensor)
        return storage is not None and storage._cdata in self._residents

    def holds_any(self, values: Iterable[Any]) -> bool:
        """Say whether a tensor among some values, or in lists of them, is there."""
        return any(tensor in self for tensor in find_tensors(values))

    def put(self, *values: Any) -> None:
        """Remember the tensors among some values."""
        for tensor in find_tensors(values):
            storage = _storage(tensor)
            if storage is not None and storage._cdata not in self._residents:
                self._residents[storage._cdata] = _resident(tensor, storage)
        if len(self._residents) > self._num_before_clearing:
            self._residents = {key: one for key, one in self._residents.items() if not one.is_gone}
            self._num_before_clearing = _MAX_GONE + len(self._residents)

    def put_module(self, module: nn.Module) -> None:
        """Remember a module, in the order in which ``to`` visits its tensors."""
        self.put(*in_loading_order(module))

    def residents(self) -> list[Resident]:
        """Return what is there now."""
        return [one for one in self._residents.values() if not one.is_gone]


def all_models() -> PretendedDevice:
    """Return a device with every module of this process that has parameters.

    For a script that never says ``cuda``: transforms and losses are modules without parameters.
    """
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    device = PretendedDevice()
    for module in modules:
        if id(module) not in inner and next(module.parameters(), None) is not None:
            device.put_module(module)
    return device


def in_loading_order(module: nn.Module) -> Iterator[torch.Tensor]:
    """Return a module's parameters and buffers in the order in which ``to`` visits them."""
    for child in module.children():
        yield from in_loading_order(child)
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def find_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Return the tensors among some values, those in lists and dictionaries included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from find_tensors(value)
        elif isinstance(value, dict):
            yield from find_tensors(value.values())


def storage_keys(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return what tells the storages of tensors apart, as ``Resident.storage.cdata`` does."""
    found = map(_storage, tensors)
    return {storage._cdata for storage in found if storage is not None}


def _storage(tensor: torch.Tensor) -> Any:
    """Return where a tensor's numbers are; None of one that has no such place."""
    if isinstance(tensor, UninitializedTensorMixin):
        return None
    if tensor.is_meta or tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # of a class that only looks like a tensor
        return None


def _resident(tensor: torch.Tensor, storage: Any) -> Resident:
    is_parameter = isinstance(tensor, nn.Parameter)
    size = tensor.numel() * tensor.element_size() if is_parameter else storage.nbytes()
    return Resident(StorageWeakRef(storage), size, tensor.numel() if is_parameter else 0)
