"""JobSpec, model -> the training loop, run iteration by iteration.

It is the plain loop that the measured runs used: a batch is copied to the device at the start of
each iteration, and what a script's variables hold (outputs, loss) lives until they are set again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import JobSpec, ModelSource, Precision, ZeroGrad
from memgate.mistakes import Mistake, show_value, unknown_field, unknown_name
from memgate_worker.jobs.arguments import declared_arguments
from memgate_worker.jobs.models import convert, own_input_shape
from memgate_worker.jobs.tasks.task import Batch, find_task, move

_LOW_PRECISION = {
    Precision.AMP_FP16: torch.float16,
    Precision.FP16: torch.float16,
    Precision.AMP_BF16: torch.bfloat16,
    Precision.BF16: torch.bfloat16,
}
_AUTOCAST = {Precision.AMP_FP16, Precision.AMP_BF16}
#: weights and batches are of the low precision themselves
_PURE = {Precision.FP16, Precision.BF16}


class TrainingLoop:
    """A job, ready to run on a device."""

    def __init__(self, spec: JobSpec, model: nn.Module, device: str) -> None:
        """Move the model to the device and make the optimizer."""
        if spec.input.is_empty and spec.model.source is ModelSource.TIMM:
            shape = own_input_shape(model)
            spec = spec.model_copy(update={"input": spec.input.model_copy(update={"shape": shape})})
        self._spec = spec
        self._device = device
        if spec.precision in _PURE:
            model = convert(model, _LOW_PRECISION[spec.precision])
        self._task = find_task(spec, model)
        if spec.precision in _PURE:
            lowered = _lower(self._task.batch, _LOW_PRECISION[spec.precision])
            self._task = replace(self._task, batch=lowered)
        if spec.gradient_checkpointing:
            _enable_checkpointing(model)
        memory_format = {"memory_format": torch.channels_last} if spec.channels_last else {}
        self.model = model.to(device, **memory_format)
        self.optimizer = _make_optimizer(spec, self.model)
        scales = spec.precision is Precision.AMP_FP16
        self._scaler = torch.amp.GradScaler(device) if scales else None

    def run(self) -> None:
        """Run all iterations."""
        spec = self._spec
        for _ in range(spec.iterations):
            if spec.zero_grad is ZeroGrad.ITERATION_START:
                self.optimizer.zero_grad()
            for _ in range(spec.gradient_accumulation_steps):
                batch = move(self._task.batch, self._device)
                with self._autocast():
                    # named, though never read: a script's variables hold them until the next turn
                    outputs = self._task.call(self.model, self._laid_out(batch))
                    loss = self._task.loss(outputs, batch)
                if spec.zero_grad is ZeroGrad.BEFORE_BACKWARD:
                    self.optimizer.zero_grad()
                self._backward(loss)
            self._step()
            if spec.zero_grad is ZeroGrad.AFTER_STEP:
                self.optimizer.zero_grad()

    def _autocast(self) -> AbstractContextManager[Any]:
        precision = self._spec.precision
        if precision not in _AUTOCAST:
            return nullcontext()
        return torch.autocast(self._device, dtype=_LOW_PRECISION[precision])

    def _laid_out(self, batch: Batch) -> Batch:
        if not self._spec.channels_last:
            return batch
        return {
            name: value.to(memory_format=torch.channels_last) if _is_image(value) else value
            for name, value in batch.items()
        }

    def _backward(self, loss: torch.Tensor) -> None:
        loss = loss / self._spec.gradient_accumulation_steps if self._accumulates else loss
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    @property
    def _accumulates(self) -> bool:
        return self._spec.gradient_accumulation_steps > 1

    def _step(self) -> None:
        if self._spec.clip_grad_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._spec.clip_grad_norm)
        if self._scaler is not None:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        else:
            self.optimizer.step()


_NO_ARGUMENT = "this optimizer takes no such argument"


def _find_optimizer(name: str) -> type[torch.optim.Optimizer]:
    known = {
        one: member
        for one, member in vars(torch.optim).items()
        if isinstance(member, type)
        and issubclass(member, torch.optim.Optimizer)
        and member is not torch.optim.Optimizer
    }
    if name not in known:
        rule = "torch.optim has no such optimizer"
        raise InputError.from_mistakes(unknown_name("optimizer.name", name, known, rule=rule))
    return known[name]


def _make_optimizer(spec: JobSpec, model: nn.Module) -> torch.optim.Optimizer:
    chosen = _find_optimizer(spec.optimizer.name)
    kwargs = {"lr": 1e-3} | spec.optimizer.kwargs
    known = sorted(declared_arguments(chosen) - {"params"})
    unknown = [
        unknown_field(f"optimizer.kwargs.{name}", value, known, rule=_NO_ARGUMENT)
        for name, value in kwargs.items()
        if name not in known
    ]
    if unknown:
        raise InputError.from_mistakes(*unknown)
    try:
        optimizer: torch.optim.Optimizer = chosen(model.parameters(), **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        if _takes(chosen, kwargs, model):
            raise  # it rejects this model's parameters: our loop gives it all of them
        given = show_value(spec.optimizer.kwargs)
        mistake = Mistake(field="optimizer.kwargs", value=given, rule=str(error))
        raise InputError.from_mistakes(mistake) from error
    return optimizer


def _takes(optimizer: Any, kwargs: dict[str, Any], model: nn.Module) -> bool:
    """Say whether an optimizer accepts some arguments, given a parameter that any accepts."""
    like = next(model.parameters(), torch.zeros(1))
    try:
        optimizer([nn.Parameter(like.new_zeros(2, 2))], **kwargs)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _is_image(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point()


def _lower(value: Any, dtype: torch.dtype) -> Any:
    """Give a batch the type of the weights."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value, dtype=dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _lower(part, dtype) for name, part in value.items()}
    return [_lower(part, dtype) for part in value] if isinstance(value, list) else value


def _enable_checkpointing(model: nn.Module) -> None:
    for enable in ("gradient_checkpointing_enable", "set_grad_checkpointing"):
        if hasattr(model, enable):
            getattr(model, enable)()
            return
    raise UnsupportedJobError(
        f"gradient_checkpointing: {type(model).__name__} has no switch for it, as transformers' and"
        " timm's models have, and memgate's own training loop knows no other way; without it the"
        " job would take other memory"
    )
