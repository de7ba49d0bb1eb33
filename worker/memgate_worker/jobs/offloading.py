"""What a job keeps in the host's memory: the state of its optimizer, its activations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from memgate.jobspec import OffloadSpec
from memgate_worker.jobs.libraries import need_library

_FIELD = "offload.optimizer"


def make_offloaded(chosen: Any, parameters: list[Any], kwargs: dict[str, Any]) -> Any:
    """Make an optimizer whose state is in the host's memory: torchao's CPUOffloadOptimizer.

    Raises:
        LibraryMissingError: if the runtime lacks torchao.
    """
    offloaded = need_library("torchao.optim", _FIELD).CPUOffloadOptimizer
    optimizer = offloaded(parameters, chosen, **kwargs)
    for on_gpu, of_one in optimizer.optim_dict.items():
        _compute_nothing(of_one, chosen)
        for group in of_one.param_groups:
            group["params"] = [on_gpu]  # whose gradient it is that it steps with
    return optimizer


def make_on_the_host(chosen: Any, parameters: list[Any], kwargs: dict[str, Any]) -> Any:
    """Make an optimizer of parameters that are in the host's memory, where FSDP keeps them."""
    optimizer = chosen(parameters, **kwargs)
    _compute_nothing(optimizer, chosen)
    return optimizer


def _compute_nothing(optimizer: Any, chosen: Any) -> None:
    """Have an optimizer's steps leave all as it is, so that no page of the host is touched."""

    class OnTheHost(chosen):
        def step(self, closure: Any = None) -> None:
            """Leave parameters as they are; they are copied to the GPU afterwards, all the same."""

    optimizer.__class__ = OnTheHost
    optimizer._patch_step_function()


def keep_activations(spec: OffloadSpec) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: what it keeps goes to the host if a job says so."""
    if not spec.activations:
        return nullcontext()
    kept: AbstractContextManager[Any] = torch.autograd.graph.save_on_cpu(pin_memory=True)
    return kept
