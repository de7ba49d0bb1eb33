"""Spec, model -> a way to train it: a batch on the host, a call of the model, a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memgate.jobspec import JobSpec, Loss, ModelSource

#: tensors by name, or lists and dictionaries of them
Batch = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One way to train a model."""

    #: on the host
    batch: Batch
    call: Callable[[nn.Module, Batch], Any]
    #: of the outputs and the batch
    loss: Callable[[Any, Batch], torch.Tensor]


def find_task(spec: JobSpec, model: nn.Module) -> Task:
    """Return how to train a model.

    Raises:
        InputError: if the spec's input is not what the model takes.
        UnsupportedJobError: if it takes something that we cannot make.
    """
    if spec.loss is Loss.CONTRASTIVE:
        from memgate_worker.jobs.tasks.contrast import contrastive_task

        return contrastive_task(spec, model)
    if spec.model.source is ModelSource.TRANSFORMERS:
        from memgate_worker.jobs.tasks.labels import transformers_task

        return transformers_task(spec, model)
    if spec.model.source is ModelSource.DIFFUSERS:
        from memgate_worker.jobs.tasks.denoising import diffusion_task

        return diffusion_task(spec, model)
    from memgate_worker.jobs.tasks.images import image_task

    return image_task(spec, model)


def move(value: Any, device: str) -> Any:
    """Copy every tensor of a batch to a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {name: move(part, device) for name, part in value.items()}
    if isinstance(value, list):
        return [move(part, device) for part in value]
    return value


def add_losses(value: Any) -> torch.Tensor:
    """Add up the losses that a model returns by name."""
    total: torch.Tensor = sum(each_tensor(value))
    return total


def each_tensor(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a nested value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from each_tensor(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from each_tensor(part)
