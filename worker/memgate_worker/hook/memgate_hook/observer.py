"""Watches a training job: which rows of the tracker belong to which phase, layer and tensor.

It watches the places that every training loop passes, whoever wrote it: calls of modules, the
start of the backward pass, steps of optimizers, calls of compiled functions. It records only
positions while the job runs; what they mean is worked out afterwards in ``labels``. It holds no
tensor and no module, so that nothing lives longer than it would on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any, Callable
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.weak import WeakIdKeyDictionary

from .arguments import find_tensors
from .compiling import watch_calls
from .marks import LayerMark, PhaseMark, TensorMark
from .turns import Turns

_Seen = tuple[torch.Tensor, str, str]

#: phases, as ``memgate.timeline.Phase`` names them
_BETWEEN, _FORWARD, _BACKWARD, _OPTIMIZER = "between", "forward", "backward", "optimizer"

#: after so many backward passes, the state of optimizers whose steps cannot be seen was seen
_UNSEEN_STEPS = 4

#: of the scales of scales of a quantised weight
_MAX_DEPTH = 2


class TrainingListener:
    """Is told what a job does. This one does nothing about it."""

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Somebody outside of all modules calls one that has or gets something on the GPU."""

    def function_begins(self, args: Any, kwargs: Any) -> None:
        """A compiled function is called, outside of all modules."""

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
        #: of the calls that have not ended, whether they are in the depth
        self._counted: list[bool] = []
        self._layer_of_module: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._layer_of_parameter: Any = WeakIdKeyDictionary()
        #: rows that FSDP lays a module's weights in; a rank's part may be padding alone
        self._layer_of_row: Any = WeakIdKeyDictionary()
        self._num_steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self.turns = Turns()
        self._num_backward_passes = 0
        self._is_stepping = False
        #: copies of weights that torch.optim.swa_utils averages
        self._averages: WeakSet[nn.Module] = WeakSet()
        self._listen()

    @property
    def has_idle_optimizer(self) -> bool:
        """There is an optimizer that has made no step; its state, if it has any, is still to come.

        One that steps in a compiled function is not seen to, but has state.
        """
        return any(not steps and not one.state for one, steps in self._num_steps.items())

    def _listen(self) -> None:
        nn.Module.__call__ = watch_calls(nn.Module.__call__, self._call_begins, self._call_ends)
        # There is no hook for it; Tensor.backward looks this name up when it is called.
        torch.autograd.backward = watch_calls(
            torch.autograd.backward, self._backward_begins, self._backward_ends
        )
        AveragedModel.__init__ = watch_calls(
            AveragedModel.__init__, lambda *_, **__: None, self._average_made
        )
        self._listen_to_steps()
        self._listen_to_compiled_functions()

    def _average_made(self, average: nn.Module, *_: Any, **__: Any) -> None:
        self._averages.add(average)

    def _listen_to_steps(self) -> None:
        """See optimizers, and their steps where torch puts its own hooks around them."""
        hook_step, patch_step = Optimizer.profile_hook_step, Optimizer._patch_step_function

        def watch_step(step: Callable[..., Any]) -> Any:
            return watch_calls(hook_step(step), self._step_begins, self._step_ends)

        def see_optimizer(optimizer: Optimizer) -> None:
            if optimizer not in self._num_steps:
                self._num_steps[optimizer] = 0
                self.turns.made(optimizer)
            patch_step(optimizer)

        Optimizer.profile_hook_step = staticmethod(watch_step)
        Optimizer._patch_step_function = see_optimizer

    def _listen_to_compiled_functions(self) -> None:
        """See calls of functions that were compiled; modules and steps in them do not show."""
        compile = torch.compile

        @wraps(compile)
        def watched_compile(model: Any = None, **options: Any) -> Any:
            compiled = compile(model, **options)
            is_step = isinstance(getattr(model, "__self__", None), Optimizer)  # which is watched
            if model is None or isinstance(model, (nn.Module, type)) or is_step:
                return compiled
            return watch_calls(compiled, self._function_begins, lambda *_, **__: None)

        torch.compile = watched_compile

    def _function_begins(self, *args: Any, **kwargs: Any) -> None:
        """A compiled function is called; under gradients, it is taken for a forward pass."""
        if self.phases[-1].phase == _BETWEEN and torch.is_grad_enabled():
            self._listener.function_begins(args, kwargs)
            self._begin(_FORWARD)

    def _call_begins(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        counts = self._depth > 0 or _is_of_the_job(module, args, kwargs)
        # What a backward pass computes again (checkpoints) is no call of the job's.
        is_again = self.phases[-1].phase == _BACKWARD
        if counts and self._depth == 0 and not is_again:
            self._listener.call_begins(module, args, kwargs)
        self._depth += counts
        self._counted.append(counts)
        self._module_begins(module)

    def _call_ends(self, module: nn.Module, *_: Any, **__: Any) -> None:
        self._depth -= self._counted.pop()
        layer = self._layer_of_module[module]
        self.layers.append(LayerMark(self._position(), layer, False))

    def _backward_begins(self, *_: Any, **__: Any) -> None:
        self._listener.backward_begins()
        self._begin(_BACKWARD)

    def _backward_ends(self, *_: Any, **__: Any) -> None:
        self._begin(_OPTIMIZER if self._is_stepping else _BETWEEN)
        self._num_backward_passes += 1
        if self._num_backward_passes > _UNSEEN_STEPS:
            return
        for optimizer, num_steps in self._num_steps.items():
            if not num_steps:  # its steps may be part of a compiled function
                self._note(self._gradients(optimizer))
                self._note(self._optimizer_state(optimizer))

    def _begin(self, phase: str) -> None:
        self.phases.append(PhaseMark(self._position(), phase))

    def _module_begins(self, module: nn.Module) -> None:
        if module not in self._layer_of_module:
            self._note(self._parameters(module))
        # Not while checkpoints are recomputed. A closure that an optimizer calls is a forward pass.
        if self.phases[-1].phase in (_BETWEEN, _OPTIMIZER):
            self._begin(_FORWARD)
        layer = self._layer_of_module[module]
        self.layers.append(LayerMark(self._position(), layer, True))

    def _step_begins(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        self._is_stepping = True
        self._begin(_OPTIMIZER)
        self._note(self._gradients(optimizer))

    def _step_ends(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        self._is_stepping = False
        self._note(self._gradients(optimizer))  # those that a closure made
        self._note(self._optimizer_state(optimizer))
        self._note(self._averaged())
        self._begin(_BETWEEN)
        self.turns.first_step(optimizer)
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
            for part in _parts(tensor):
                if part.is_cuda:
                    address = part.untyped_storage().data_ptr()
                    self.tensors.append(TensorMark(position, address, category, layer))

    def _parameters(self, root: nn.Module) -> Iterator[_Seen]:
        """Note the parameters and buffers of a module that is called for the first time."""
        in_rows = {id(one) for module in root.modules() for one in _in_row(_row_of(module))}
        for name, module in root.named_modules():
            # which is around what is compiled
            name = name.replace("_orig_mod.", "").replace("_orig_mod", "")
            self._layer_of_module.setdefault(module, name)
            for parameter in module.parameters(recurse=False):
                if parameter not in self._layer_of_parameter:
                    self._layer_of_parameter[parameter] = name
                    if id(parameter) not in in_rows:  # DeepSpeed keeps how many it had
                        self.num_parameters += getattr(parameter, "ds_numel", parameter.numel())
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                yield tensor, "parameters", name
                for scale in _scales(tensor):
                    yield scale, "parameters", name
            row = _row_of(module)
            if row is not None:
                if row not in self._layer_of_row:
                    self.num_parameters += sum(shape.numel() for shape in row._shapes)
                self._layer_of_row[row] = name
                yield row, "parameters", name

    def _averaged(self) -> Iterator[_Seen]:
        """Note copies of weights, which no optimizer has and the job may never call."""
        for average in self._averages:
            for name, module in average.named_modules():
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    yield tensor, "parameters", f"average {name}".strip()

    def _gradients(self, optimizer: Optimizer) -> Iterator[_Seen]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                layer = self._layer_of_parameter.get(parameter, "")
                yield parameter, "parameters", layer
                if parameter.grad is not None:
                    yield parameter.grad, "gradients", layer
        for row, layer in self._layer_of_row.items():
            # FSDP keeps it here where it shows a weight's own part instead
            for gradient in (row.grad, getattr(row, "_saved_grad_shard", None)):
                if gradient is not None:
                    yield gradient, "gradients", layer

    def _optimizer_state(self, optimizer: Optimizer) -> Iterator[_Seen]:
        for parameter, state in optimizer.state.items():
            # an optimizer of peft (LoRA-FA) keeps it by the name of an adapter
            is_tensor = isinstance(parameter, torch.Tensor)
            layer = self._layer_of_parameter.get(parameter, "") if is_tensor else ""
            for name, value in state.items():
                for _, tensor in find_tensors(str(name), value):
                    yield tensor, "optimizer_state", layer


def _is_of_the_job(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Tell whether a module has weights on the GPU, or is called with something on it.

    Others are transforms of images and the like, which data loaders call by the thousand. A model
    that torch.jit traces is run for its graph alone.
    """
    if torch._C._get_tracing_state() is not None:
        return False
    if any(parameter.is_cuda for parameter in module.parameters()):
        return True
    return any(tensor.is_cuda for _, tensor in find_tensors("", (args, kwargs)))


def _row_of(module: nn.Module) -> Any:
    """Return what ``FullyShardedDataParallel`` has made of the parameters of a module."""
    return getattr(getattr(module, "_handle", None), "flat_param", None)


def _in_row(row: Any) -> tuple[Any, ...]:
    """Return a row, and the parameters in it, which show this rank's part of them."""
    return () if row is None else (row, *(row._params or ()))


def _scales(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield what a quantised weight of bitsandbytes needs to be read: attributes of it."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        yield from _held_by(tensor, depth=0)


def _held_by(holder: Any, depth: int) -> Iterator[torch.Tensor]:
    for value in getattr(holder, "__dict__", {}).values():
        if isinstance(value, torch.Tensor):
            yield value
        elif depth < _MAX_DEPTH and not isinstance(value, (nn.Module, type)):
            yield from _held_by(value, depth + 1)


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the memory.

    Of a DTensor this rank's, of a quantised one both, of a sparse one (as of embeddings) several.
    """
    if hasattr(tensor, "__tensor_flatten__"):
        held = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for part in held:  # of a DTensor, the mesh of devices is among them
            if isinstance(part, torch.Tensor):
                yield from _parts(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
