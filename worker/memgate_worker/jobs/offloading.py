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

    class OnTheHost(chosen):
        """Computes nothing, so that no page of the host's memory is touched."""

        def step(self, closure: Any = None) -> None:
            """Leave the parameter as it is; it is copied to the GPU afterwards, all the same."""

    for on_gpu, of_one in optimizer.optim_dict.items():
        of_one.__class__ = OnTheHost
        of_one._patch_step_function()
        for group in of_one.param_groups:
            group["params"] = [on_gpu]  # whose gradient it is that it steps with
    return optimizer


def keep_activations(spec: OffloadSpec) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: what it keeps goes to the host if a job says so."""
    if not spec.activations:
        return nullcontext()
    kept: AbstractContextManager[Any] = torch.autograd.graph.save_on_cpu(pin_memory=True)
    return kept
