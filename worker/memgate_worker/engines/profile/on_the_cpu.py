"""Lets code that says ``cuda`` run on the CPU. Needs torch.

What such code puts on the device becomes a copy on the CPU, so that a profiler sees what would be
on a GPU. Models that are moved before it records stay where they are: their sizes are noted
separately. What is on the device is remembered (``pretended``), since it is copied only once; and
what is computed from other tensors, which are the host's, is marked as such.

Known limitation: a tensor that is on the device has ``cpu`` for its device. So a device that is
given as an object, not as a word, is taken for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import record_function
from torch.utils import _device
from torch.utils._device import _device_constructors
from torch.utils.data import DataLoader

from memgate.host_work import HOST_MARK
from memgate_worker.engines.profile.pretended import PretendedDevice

#: autograd's number of one
_NO_BACKWARD_PASS = -1


class OnTheCpu(TorchFunctionMode):
    """While it is active, tensors that should be on ``cuda`` are on the CPU."""

    def __init__(self, device: PretendedDevice) -> None:
        """Remember in ``device`` what should be on ``cuda``."""
        super().__init__()
        self._device = device
        #: a data loader is at work
        self.is_loading = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.cuda:
            func, args, named = torch.Tensor.to, (args[0], "cuda"), {}
        if _goes_to_the_host(func, args) and args[0] in self._device:
            with record_function(HOST_MARK):
                return args[0].clone()
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cuda", *args[2:])
        if func in _device_constructors() and named.get("device") is None:
            named["device"] = _device.CURRENT_DEVICE  # of ``set_default_device``
        said = func is not torch.device and any(map(self._is_there, (*args, named.get("device"))))
        if said:
            args = [torch.device("cpu") if _is_cuda(value) else value for value in args]
            if _is_cuda(named.get("device")):
                named["device"] = torch.device("cpu")
        if not said and not self._device.holds_any((args, named)):
            return self._compute_on_the_host(func, args, named)
        if func is torch.Tensor.to and args[0] not in self._device:
            named["copy"] = True
        result = func(*args, **named)
        self._device.put(result)
        return result

    def _is_there(self, value: Any) -> bool:
        """Say whether a value names the device: tensors that are there say ``cpu``, too.

        In a data loader, tensors are the host's, and in a script that has put nothing on the device
        as well.
        """
        if isinstance(value, torch.device) and value.type == "cpu":
            return bool(self._device) and not self.is_loading
        return _is_cuda(value)

    def _compute_on_the_host(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        # what a backward pass makes is not known here
        is_hosts = self._device and torch._C._current_graph_task_id() == _NO_BACKWARD_PASS
        if not self.is_loading and not is_hosts:
            return func(*args, **named)
        with record_function(HOST_MARK):
            return func(*args, **named)


def redirect_to_the_cpu(device: PretendedDevice) -> None:
    """Change what no mode reaches, permanently: models, autocast, scalers, data loaders."""
    nn.Module.to = _to_but_not_to_cuda(nn.Module.to, device)
    nn.Module.cuda = lambda module, *_, **__: module.to("cuda")
    torch.amp.autocast_mode.autocast.__init__ = _for_cpu(torch.amp.autocast_mode.autocast.__init__)
    torch.amp.GradScaler.__init__ = _for_cpu(torch.amp.GradScaler.__init__)
    DataLoader.__init__ = _without_pinning(DataLoader.__init__)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _goes_to_the_host(func: Any, args: Sequence[Any]) -> bool:
    """Say whether a tensor is copied to the host: ``to(other.device)`` says ``cpu``, too, here."""
    said = func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], str)
    return func is torch.Tensor.cpu or (said and args[1] == "cpu")


def _to_but_not_to_cuda(to: Any, device: PretendedDevice) -> Any:
    def to_but_not_to_cuda(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if args and type(args[0]) is int:
            args = ("cuda", *args[1:])
        kept = [value for value in args if not _is_cuda(value)]
        named = {name: value for name, value in kwargs.items() if not _is_cuda(value)}
        moved: nn.Module = to(module, *kept, **named) if kept or named else module
        if len(kept) == len(args) and len(named) == len(kwargs):
            return moved
        if device.is_recorded:  # made on the host, and copied
            moved._apply(lambda tensor: tensor.to("cuda"))
        device.put_module(moved)
        return moved

    return to_but_not_to_cuda


def _for_cpu(initialize: Any) -> Any:
    def initialize_for_cpu(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        for name in ("device", "device_type"):
            if _is_cuda(kwargs.get(name)):
                kwargs[name] = "cpu"
        given = () if {"device", "device_type"} & kwargs.keys() else ("cpu",)
        del device
        initialize(self, *given, *args, **kwargs)

    return initialize_for_cpu


def _without_pinning(initialize: Any) -> Any:
    def initialize_without_pinning(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["pin_memory"] = False
        initialize(self, *args, **kwargs)

    return initialize_without_pinning
