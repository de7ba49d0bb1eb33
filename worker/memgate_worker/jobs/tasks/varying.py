"""JobSpec, model -> how to train it with each of its batches, which may be of different sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memgate.batch_choice import choose_batches
from memgate.jobspec import InputSpec, JobSpec
from memgate_worker.jobs.tasks.task import Task, find_task


def make_tasks(spec: JobSpec, model: nn.Module) -> list[Task]:
    """Return how to train a model with each batch that is run, in their order.

    All are made before the first is run: an adapter, or another device, may hide what a model
    takes. Raises what ``find_task`` raises.
    """
    if not spec.input.varies:
        return [find_task(spec, model)]
    made: dict[Any, Task] = {}
    tasks = []
    for one in chosen_batches(spec):
        key = (one.sequence_length, one.shape)
        if key not in made:
            task = find_task(spec.model_copy(update={"input": one}), model)
            made[key] = replace(task, batch=_thin(task.batch))
        tasks.append(made[key])
    return tasks


def chosen_batches(spec: JobSpec) -> list[InputSpec]:
    """Return the input of each batch that is run."""
    batches = spec.input.list_batches(spec.batch_size)
    return [batches[at] for at in choose_batches(batches)]


def num_iterations(spec: JobSpec) -> int:
    """Return how many iterations are run: as many as take all batches, where those vary."""
    if not spec.input.varies:
        return spec.iterations
    return -(-len(chosen_batches(spec)) // spec.gradient_accumulation_steps)


def _thin(value: Any) -> Any:
    """Keep hundreds of batches in little memory: of numbers that are all the same, keep one."""
    if isinstance(value, torch.Tensor):
        return value.flatten()[:1].clone().expand(value.shape) if _is_flat(value) else value
    if isinstance(value, dict):
        return {name: _thin(part) for name, part in value.items()}
    return [_thin(part) for part in value] if isinstance(value, list) else value


def _is_flat(value: torch.Tensor) -> bool:
    """Say whether a tensor holds samples, which are made of zeros."""
    return value.is_floating_point() and value.numel() > 0 and not value.any()
