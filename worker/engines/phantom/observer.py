"""Watches a training loop: which rows of the tracker belong to which phase, layer and tensor.

Positions only, taken while the job runs; what they mean is worked out afterwards in ``labels``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from memgate.timeline import Category
from worker.engines.phantom.marks import LayerMark, PhaseMark, TensorMark
from worker.jobs.loop import TrainingLoop
from worker.jobs.phases import Phase


class Observer:
    """Collects marks while a loop runs."""

    def __init__(self, position: Callable[[], int]) -> None:
        """``position`` tells how many rows there are."""
        self._position = position
        self.phases: list[PhaseMark] = []
        self.layers: list[LayerMark] = []
        self.tensors: list[TensorMark] = []
        self._loop: TrainingLoop | None = None

    def watch(self, loop: TrainingLoop) -> None:
        """Hook into a loop's modules, and note its parameters."""
        self._loop = loop
        for name, module in loop.model.named_modules():
            module.register_forward_pre_hook(self._begins(name))
            module.register_forward_hook(self._ends(name), always_call=True)
        self._note(_parameters(loop))

    def on_phase(self, phase: Phase) -> None:
        """Hear that a phase begins; what the one before left behind can be seen now."""
        assert self._loop is not None
        before = self.phases[-1].phase if self.phases else None
        if before is Phase.BACKWARD:
            self._note(_gradients(self._loop))
        elif before is Phase.OPTIMIZER:
            self._note(_optimizer_state(self._loop))
        self.phases.append(PhaseMark(self._position(), phase))

    def _begins(self, layer: str) -> Any:
        return lambda *_: self.layers.append(LayerMark(self._position(), layer, True))

    def _ends(self, layer: str) -> Any:
        return lambda *_: self.layers.append(LayerMark(self._position(), layer, False))

    def _note(self, tensors: Iterator[tuple[torch.Tensor, Category, str]]) -> None:
        position = self._position()
        for tensor, category, layer in tensors:
            address = tensor.untyped_storage().data_ptr()
            self.tensors.append(TensorMark(position, address, category, layer))


def _parameters(loop: TrainingLoop) -> Iterator[tuple[torch.Tensor, Category, str]]:
    for module_name, module in loop.model.named_modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            yield tensor, Category.PARAMETERS, module_name


def _gradients(loop: TrainingLoop) -> Iterator[tuple[torch.Tensor, Category, str]]:
    for module_name, module in loop.model.named_modules():
        for parameter in module.parameters(recurse=False):
            if parameter.grad is not None:
                yield parameter.grad, Category.GRADIENTS, module_name


def _optimizer_state(loop: TrainingLoop) -> Iterator[tuple[torch.Tensor, Category, str]]:
    layer_of = {
        parameter: module_name
        for module_name, module in loop.model.named_modules()
        for parameter in module.parameters(recurse=False)
    }
    for parameter, state in loop.optimizer.state.items():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                yield value, Category.OPTIMIZER_STATE, layer_of.get(parameter, "")
