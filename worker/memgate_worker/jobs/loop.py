"""JobSpec, model -> the training loop, run iteration by iteration.

It is the plain loop that the measured runs used: a batch is copied to the device at the start of
each iteration, and what a script's variables hold (outputs, loss) lives until they are set again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch
from torch import nn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import (
    JobSpec,
    ModelSource,
    Precision,
    QuantizationLibrary,
    QuantizationSpec,
    ZeroGrad,
)
from memgate_worker.jobs.adapters import add_adapter, follow_step
from memgate_worker.jobs.between_steps import BetweenSteps, Saving, as_it_is
from memgate_worker.jobs.compiling import compile_model
from memgate_worker.jobs.distributed.dividing import (
    clip_gradients,
    divide,
    hold_gradients,
    make_scaler,
)
from memgate_worker.jobs.liger import take_liger_layers
from memgate_worker.jobs.models import WithoutFilling, convert, own_input_shape
from memgate_worker.jobs.offloading import keep_activations
from memgate_worker.jobs.optimizers import make_optimizers, needs_closure
from memgate_worker.jobs.quantization import prepare, quantize, tell_trainers
from memgate_worker.jobs.steering import Steering
from memgate_worker.jobs.tasks.task import Batch, Task, each_tensor, move
from memgate_worker.jobs.tasks.varying import make_tasks, num_iterations
from memgate_worker.jobs.torchao_weights import quantize_by_torchao

_LOW_PRECISION = {
    Precision.AMP_FP16: torch.float16,
    Precision.FP16: torch.float16,
    Precision.AMP_BF16: torch.bfloat16,
    Precision.BF16: torch.bfloat16,
}
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_AUTOCAST = {Precision.AMP_FP16, Precision.AMP_BF16}
#: what switches it on, by library
_CHECKPOINTING = (
    "gradient_checkpointing_enable",
    "set_grad_checkpointing",
    "enable_gradient_checkpointing",
)
#: weights and batches are of the low precision themselves
_PURE = {Precision.FP16, Precision.BF16}


class TrainingLoop:
    """A job, ready to run on a device."""

    def __init__(
        self, spec: JobSpec, model: nn.Module, device: str, saving: Saving = as_it_is
    ) -> None:
        """Move the model to the device and make the optimizer."""
        self._spec, model, tasks = ready(spec, model)
        self._device = device
        self._tasks = cycle(tasks)
        self._evaluation = evaluation_task(self._spec, model, tasks)
        if spec.distributed is None:
            self.model = compile_model(place(spec, model, device), spec.compile)
        else:
            self.model = divide(spec.distributed, place(spec, model, where(spec)), device)
        self._between = BetweenSteps(self._spec, self.model, self._evaluation.batch, saving)
        self.optimizers = make_optimizers(
            spec.optimizer, self.model, spec.offload, spec.distributed
        )
        self._needs_closure = needs_closure(type(self.optimizers[0]))
        scales = spec.precision is Precision.AMP_FP16
        self._scaler = make_scaler(spec, device) if scales else None
        if spec.input.varies and self._needs_closure:
            raise UnsupportedJobError(
                f"{spec.optimizer.name} calls the model as often as it likes, so memgate cannot say"
                " which batch of 'input' comes when; give one length or shape"
            )
        if scales and self._needs_closure:
            raise UnsupportedJobError(
                f"{spec.optimizer.name} calls the model itself, which torch's scaler of gradients"
                " (precision amp-fp16) does not allow; use amp-bf16 or fp32"
            )

    def run(self) -> None:
        """Run all iterations."""
        spec = self._spec
        if self._needs_closure:
            for done in range(max(spec.iterations, _num_until_full(self.optimizers[0]))):
                self.optimizers[0].step(self._evaluate)
                self._between.follow(done + 1, self.optimizers, self._predict)
            return
        for done in range(num_iterations(spec)):
            if spec.zero_grad is ZeroGrad.ITERATION_START:
                self._zero_grad()
            for turn in range(spec.gradient_accumulation_steps):
                is_last = turn + 1 == spec.gradient_accumulation_steps
                task = next(self._tasks)
                batch = move(task.batch, self._device)
                with hold_gradients(spec, self.model, is_last=is_last):
                    with keep_activations(spec.offload), self._autocast():
                        # named, though never read: a script's variables hold them until next turn
                        outputs = task.call(self.model, self._laid_out(batch))
                        loss = task.loss(outputs, batch)
                    if spec.zero_grad is ZeroGrad.BEFORE_BACKWARD:
                        self._zero_grad()
                    self._backward(loss)
            self._step()
            follow_step(self.model, done + 1)
            if spec.zero_grad is ZeroGrad.AFTER_STEP:
                self._zero_grad()
            self._between.follow(done + 1, self.optimizers, self._predict)

    def _predict(self, batch: Batch) -> Any:
        """Make a forward pass of an evaluation, and return what it keeps: outputs and a loss."""
        batch = move(batch, self._device)
        with self._autocast():
            outputs = self._evaluation.call(self.model, self._laid_out(batch))
            is_detected = isinstance(outputs, list) and isinstance(outputs[0], dict)
            return outputs, None if is_detected else self._evaluation.loss(outputs, batch)

    def _evaluate(self) -> Any:
        """Compute a loss and its gradients, for an optimizer that calls this as often as it likes.

        PyTorch's documents write such closures in this way.
        """
        self._zero_grad()
        for _ in range(self._spec.gradient_accumulation_steps):
            task = next(self._tasks)
            batch = move(task.batch, self._device)
            with keep_activations(self._spec.offload), self._autocast():
                outputs = task.call(self.model, self._laid_out(batch))
                loss = task.loss(outputs, batch)
            self._backward(loss)
        return loss

    def _zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

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
        if self._spec.clip_grad_norm:
            if self._scaler is not None:
                for optimizer in self.optimizers:
                    self._scaler.unscale_(optimizer)
            clip_gradients(self.model, self._spec.clip_grad_norm)
        for optimizer in self.optimizers:
            if self._scaler is not None:
                self._scaler.step(optimizer)
            else:
                optimizer.step()
        if self._scaler is not None:
            self._scaler.update()


def ready(spec: JobSpec, model: nn.Module) -> tuple[JobSpec, nn.Module, list[Task]]:
    """Give a model on the CPU its precision, and find out how it is trained.

    Returns:
        The spec with the size of its input filled in, the model, and a task for each batch; one
        stands for all of them unless the input varies.
    """
    if spec.input.is_empty and spec.model.source is ModelSource.TIMM:
        shape = own_input_shape(model)
        spec = spec.model_copy(update={"input": spec.input.model_copy(update={"shape": shape})})
    dtype = _LOW_PRECISION.get(spec.precision)
    if isinstance(model, Steering) and dtype is not None:  # what is frozen needs no more
        convert(model.steered, dtype)
    if dtype is None or spec.precision not in _PURE:
        return spec, model, make_tasks(spec, model)
    model = convert(model, dtype)
    tasks = make_tasks(spec, model)
    return spec, model, [replace(task, batch=_lower(task.batch, dtype)) for task in tasks]


def evaluation_task(spec: JobSpec, model: nn.Module, tasks: list[Task]) -> Task:
    """Return how a model is evaluated: with the largest batch of training, or one of its size."""
    size = spec.eval.batch_size if spec.eval is not None else None
    if size is not None and size != spec.batch_size:
        tasks = ready(spec.model_copy(update={"batch_size": size}), model)[2]
    return max(tasks, key=lambda task: sum(one.numel() for one in each_tensor(task.batch)))


def place(spec: JobSpec, model: nn.Module, device: str) -> nn.Module:
    """Put a model on its device, as it is trained: quantised, with an adapter, checkpointed."""
    if spec.liger:
        take_liger_layers(model)
    if spec.quantization is not None:
        given = spec.quantization.compute
        compute = _TYPES[given] if given else _LOW_PRECISION.get(spec.precision, torch.float32)
        model = convert(model, compute)
        if spec.quantization.library is QuantizationLibrary.TORCHAO:
            quantize_by_torchao(model, spec.quantization, device)
        else:
            model = quantize(model, spec.quantization, compute)
    if spec.gradient_checkpointing:
        _enable_checkpointing(model)
    memory_format = {"memory_format": torch.channels_last} if spec.channels_last else {}
    model = model.to(device, **memory_format)
    if spec.quantization is not None and spec.trainer.is_of_transformers:
        tell_trainers(model, spec.quantization, compute)
    if spec.lora is None:
        return model
    with WithoutFilling():
        if _is_prepared(spec.quantization):
            model = prepare(model, checkpointing=spec.gradient_checkpointing)
        return add_adapter(model, spec.lora).train()


def where(spec: JobSpec) -> str:
    """Say where a model is put before it is divided: a quantised one is on the GPU already."""
    return "cpu" if spec.quantization is None else "cuda"


def _is_prepared(spec: QuantizationSpec | None) -> bool:
    """Say whether peft makes a quantised model ready; it would unpack torchao's weights."""
    if spec is None or spec.library is not QuantizationLibrary.BITSANDBYTES:
        return False
    return spec.prepare


def _num_until_full(optimizer: torch.optim.Optimizer) -> int:
    """Return after how many steps an optimizer's history (LBFGS) grows no more."""
    return max(group.get("history_size", 0) for group in optimizer.param_groups) + 2


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
    for enable in _CHECKPOINTING:
        # models of diffusers all have the switch, and some refuse it
        if hasattr(model, enable) and getattr(model, "_supports_gradient_checkpointing", True):
            getattr(model, enable)()
            return
    raise UnsupportedJobError(
        f"gradient_checkpointing: {type(model).__name__} has no switch for it, as most models of"
        " transformers, timm and diffusers have, and memgate's own training loop knows no other"
        " way; without it the job would take other memory"
    )
