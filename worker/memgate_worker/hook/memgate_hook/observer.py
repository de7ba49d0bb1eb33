"""Watches a training job: which rows of the tracker belong to which phase, layer and tensor.

It hooks into the places that every training loop passes, whoever wrote it: calls of modules, the
start of the backward pass, steps of optimizers. It records only positions while the job runs; what
they mean is worked out afterwards in ``labels``. It holds no tensor and no module, so that nothing
lives longer than it would on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from .arguments import find_tensors
from .marks import LayerMark, PhaseMark, TensorMark

_Seen = tuple[torch.Tensor, str, str]

#: phases, as ``memgate.timeline.Phase`` names them
_BETWEEN, _FORWARD, _BACKWARD, _OPTIMIZER = "between", "forward", "backward", "optimizer"


class TrainingListener:
    """Is told what a job does. This one does nothing about it."""

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Somebody outside of all modules calls one that has or gets something on the GPU."""

    def backward_begins(self) -> None:
        """A backward pass."""

    def step_ends(self, num_steps: int) -> None:
        """An optimizer has made a step; the busiest one has made ``num_steps``."""


class Observer:
    """Collects marks while a job runs."""

    def __init__(self, position: Callable[[], int], listener: TrainingListener) -> None:
        """Listen from now on; ``position`` returns how many rows there are."""
        self._position = position
        self._listener = listener
        self.phases: list[PhaseMark] = [PhaseMark(0, _BETWEEN)]
        self.layers: list[LayerMark] = []
        self.tensors: list[TensorMark] = []
        self.num_parameters = 0
        self._depth = 0
        self._layer_of_module: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._layer_of_parameter: Any = WeakIdKeyDictionary()
        self._num_steps: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._is_stepping = False
        self._listen()

    def _listen(self) -> None:
        register_module_forward_pre_hook(self._module_begins)
        register_module_forward_hook(self._module_ends, always_call=True)
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._step_ends)
        self._listen_to_calls()
        self._listen_to_backward()

    def _listen_to_calls(self) -> None:
        """See calls with all of their arguments, which hooks for all modules are not given."""
        call = nn.Module.__call__

        def seen_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                # Transforms of images and the like, which data loaders call by the thousand; and
                # a model that torch.jit traces, which is run for its graph alone.
                is_traced = torch._C._get_tracing_state() is not None
                if is_traced or not _is_on_the_gpu(module, args, kwargs):
                    return call(module, *args, **kwargs)
                self._listener.call_begins(module, args, kwargs)
            self._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        nn.Module.__call__ = seen_call

    def _listen_to_backward(self) -> None:
        backward = torch.autograd.backward

        def marked_backward(*args: Any, **kwargs: Any) -> Any:
            self._listener.backward_begins()
            self._begin(_BACKWARD)
            try:
                return backward(*args, **kwargs)
            finally:
                self._begin(_OPTIMIZER if self._is_stepping else _BETWEEN)

        # There is no hook for it; Tensor.backward looks this name up when it is called.
        torch.autograd.backward = marked_backward

    def _begin(self, phase: str) -> None:
        self.phases.append(PhaseMark(self._position(), phase))

    def _module_begins(self, module: nn.Module, _: Any) -> None:
        if module not in self._layer_of_module:
            self._note(self._parameters(module))
        # Not while checkpoints are recomputed. A closure that an optimizer calls is a forward pass.
        if self.phases[-1].phase in (_BETWEEN, _OPTIMIZER):
            self._begin(_FORWARD)
        layer = self._layer_of_module[module]
        self.layers.append(LayerMark(self._position(), layer, True))

    def _module_ends(self, module: nn.Module, *_: Any) -> None:
        layer = self._layer_of_module[module]
        self.layers.append(LayerMark(self._position(), layer, False))

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_stepping = True
        self._begin(_OPTIMIZER)
        self._note(self._gradients(optimizer))

    def _step_ends(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_stepping = False
        self._note(self._gradients(optimizer))  # those that a closure made
        self._note(self._optimizer_state(optimizer))
        self._begin(_BETWEEN)
        self._num_steps[optimizer] = self._num_steps.get(optimizer, 0) + 1
        self._listener.step_ends(max(self._num_steps.values()))

    def _note(self, tensors: Iterator[_Seen]) -> None:
        # What we ask of tensors must not be in the graph of a model that is traced.
        tracing = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)
        try:
            self._note_each(tensors)
        finally:
            torch._C._set_tracing_state(tracing)

    def _note_each(self, tensors: Iterator[_Seen]) -> None:
        position = self._position()
        for tensor, category, layer in tensors:
            tensor = getattr(tensor, "_local_tensor", tensor)  # this rank's part of a DTensor
            if tensor.is_cuda:
                address = tensor.untyped_storage().data_ptr()
                self.tensors.append(TensorMark(position, address, category, layer))

    def _parameters(self, root: nn.Module) -> Iterator[_Seen]:
        """Note the parameters and buffers of a module that is called for the first time."""
        for name, module in root.named_modules():
            self._layer_of_module.setdefault(module, name)
            for parameter in module.parameters(recurse=False):
                if parameter not in self._layer_of_parameter:
                    self._layer_of_parameter[parameter] = name
                    self.num_parameters += parameter.numel()
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                yield tensor, "parameters", name

    def _gradients(self, optimizer: torch.optim.Optimizer) -> Iterator[_Seen]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                layer = self._layer_of_parameter.get(parameter, "")
                yield parameter, "parameters", layer
                if parameter.grad is not None:
                    yield parameter.grad, "gradients", layer

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> Iterator[_Seen]:
        for parameter, state in optimizer.state.items():
            layer = self._layer_of_parameter.get(parameter, "")
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    yield value, "optimizer_state", layer


def _is_on_the_gpu(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Tell whether a module has weights on the GPU, or is called with something on it."""
    if any(parameter.is_cuda for parameter in module.parameters()):
        return True
    return any(tensor.is_cuda for _, tensor in find_tensors("", (args, kwargs)))
