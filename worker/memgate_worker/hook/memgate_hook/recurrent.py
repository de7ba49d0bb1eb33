"""Recurrent layers, which only cuDNN knows the memory of: PyTorch's own kernels stand in for it.

Both keep the gates of every step for the backward pass, but not in the same way. So the caller is
told, and nothing is admitted for it.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn

from .compiling import watch_calls


def run_recurrent_layers_without_cudnn(note: Callable[[], None]) -> None:
    """Have PyTorch compute recurrent layers itself; ``note`` is called where it does."""
    settings: list[bool] = []

    def begins(module: nn.RNNBase, *_: Any, **__: Any) -> None:
        settings.append(torch._C._get_cudnn_enabled())
        if any(weight.is_cuda for weight in module.parameters(recurse=False)):
            note()
            torch._C._set_cudnn_enabled(False)

    def ends(*_: Any, **__: Any) -> None:
        torch._C._set_cudnn_enabled(settings.pop())

    for layer in (nn.RNN, nn.LSTM, nn.GRU):
        layer.forward = watch_calls(layer.forward, begins, ends)
    # It puts weights where cuDNN wants them, by a call of cuDNN.
    nn.RNNBase.flatten_parameters = lambda _: None
