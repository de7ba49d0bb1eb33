"""JobSpec, model -> the model as one rank trains it, and what its loop must do differently.

START READING HERE. Each strategy is torch's own code, called as its documents call it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from memgate.jobspec import DistributedSpec, JobSpec, Strategy
from memgate_worker.jobs.distributed.flat import shard_flat
from memgate_worker.jobs.distributed.group import make_mesh
from memgate_worker.jobs.distributed.sharding import shard_each
from memgate_worker.jobs.distributed.tensors import divide_layers


def divide(spec: DistributedSpec, model: nn.Module, device: str) -> nn.Module:
    """Divide a model that is on the CPU, and put this rank's part on the device."""
    strategy = spec.strategy
    if strategy.is_by_ddp:
        return _replicate(model.to(device), spec)
    if strategy.is_by_flat_parameters or (strategy is Strategy.HSDP and spec.fsdp_version == 1):
        return shard_flat(model, spec)
    mesh = make_mesh(spec)
    if spec.tensor_degree > 1:
        model = divide_layers(model, mesh["tp"])
        if strategy is Strategy.TP:
            return model.to_empty(device=device)
    return shard_each(model, spec, mesh, device)


def _replicate(model: nn.Module, spec: DistributedSpec) -> nn.Module:
    return nn.parallel.DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()],
        bucket_cap_mb=spec.bucket_mb,
        gradient_as_bucket_view=spec.gradient_as_bucket_view,
        find_unused_parameters=spec.find_unused_parameters,
        static_graph=spec.static_graph,
    )


def make_divided(chosen: Any, parameters: list[Any], kwargs: dict[str, Any]) -> Optimizer:
    """Make an optimizer of which each rank steps some of the parameters, and sends them."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    made: Optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=chosen, **kwargs)
    return made


def make_scaler(spec: JobSpec, device: str) -> Any:
    """Return what scales gradients; ``FullyShardedDataParallel`` has one of its own."""
    divided = spec.distributed
    if divided is not None and divided.strategy.is_by_flat_parameters:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device)
    return torch.amp.GradScaler(device)


def clip_gradients(model: nn.Module, norm: float) -> None:
    """Clip gradients by the norm of all of them, on whatever rank they are."""
    own: Any = getattr(model, "clip_grad_norm_", None)
    if own is not None:
        own(norm)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), norm)


def hold_gradients(spec: JobSpec, model: Any, *, is_last: bool) -> AbstractContextManager[Any]:
    """Return the context of a step of accumulation: gradients are sent in the last, if asked."""
    if spec.distributed is None or not spec.distributed.no_sync:
        return nullcontext()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(is_last)
        return nullcontext()
    held: AbstractContextManager[Any] = nullcontext() if is_last else model.no_sync()
    return held
