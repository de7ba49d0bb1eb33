"""Lets code that says ``cuda`` run on the CPU. Needs torch.

What such code puts on the device becomes a copy on the CPU, so that a profiler sees what would be
on a GPU. The model itself stays where it is: its sizes are noted separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader


class OnTheCpu(TorchFunctionMode):
    """While it is active, tensors that should be on ``cuda`` are on the CPU."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].clone()
        if func is torch.Tensor.pin_memory:
            return args[0]
        said = any(map(_is_cuda, args)) or _is_cuda(named.get("device"))
        if said and func is not torch.device:
            args = [torch.device("cpu") if _is_cuda(value) else value for value in args]
            if _is_cuda(named.get("device")):
                named["device"] = torch.device("cpu")
            if func is torch.Tensor.to:
                named["copy"] = True
        return func(*args, **named)


def redirect_to_the_cpu() -> None:
    """Change what no mode reaches, permanently: models, autocast, scalers, data loaders."""
    nn.Module.cuda = lambda module, *_: module
    nn.Module.to = _to_but_not_to_cuda(nn.Module.to)
    torch.amp.autocast_mode.autocast.__init__ = _for_cpu(torch.amp.autocast_mode.autocast.__init__)
    torch.amp.GradScaler.__init__ = _for_cpu(torch.amp.GradScaler.__init__)
    DataLoader.__init__ = _without_pinning(DataLoader.__init__)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _to_but_not_to_cuda(to: Any) -> Any:
    def to_but_not_to_cuda(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        kept = [value for value in args if not _is_cuda(value)]
        named = {name: value for name, value in kwargs.items() if not _is_cuda(value)}
        moved: nn.Module = to(module, *kept, **named) if kept or named else module
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
