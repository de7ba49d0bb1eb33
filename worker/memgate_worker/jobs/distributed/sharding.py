"""``fully_shard`` (FSDP2): each parameter is divided on its own, along its first dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import DistributedSpec, MixedPrecisionSpec, Strategy
from memgate_worker.jobs.distributed.blocks import find_blocks
from memgate_worker.jobs.distributed.flat import TYPES


def shard_each(model: nn.Module, spec: DistributedSpec, mesh: Any, device: str) -> nn.Module:
    """Divide a model that has no memory yet (``meta``), and give each rank's part its memory.

    That is how large models are made: no rank ever has all of it.
    """
    fully_shard, precision_policy, offload_policy = _load()
    blocks = find_blocks(model, spec)
    forget_weights(model)
    if spec.strategy is not Strategy.HSDP:
        mesh = mesh["shard"]
    shared: dict[str, Any] = {"mesh": mesh}
    if spec.mixed_precision is not None:
        shared["mp_policy"] = precision_policy(**_precision(spec.mixed_precision))
    if spec.cpu_offload:
        shared["offload_policy"] = offload_policy()
    reshard = spec.reshard_after_forward
    for block in blocks:
        fully_shard(block, reshard_after_forward=True if reshard is None else reshard, **shared)
    # the model itself is not dropped between the passes, unless torch is told to
    fully_shard(model, **shared, **({"reshard_after_forward": False} if reshard is False else {}))
    return model.to_empty(device="cpu" if spec.cpu_offload else device)


def forget_weights(model: nn.Module) -> None:
    """Move parameters to ``meta``; those that are one and the same stay so."""
    # the old ones are kept until all are replaced, so that no two have the same number
    known: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for module in model.modules():
        for name, one in list(module._parameters.items()):
            if one is None:
                continue
            if id(one) not in known:
                without = nn.Parameter(one.to("meta"), requires_grad=one.requires_grad)
                without.__dict__.update(one.__dict__)
                known[id(one)] = one, without
            module._parameters[name] = known[id(one)][1]


def _precision(given: MixedPrecisionSpec) -> dict[str, torch.dtype]:
    named = {"param_dtype": given.param, "reduce_dtype": given.reduce}
    return {name: TYPES[one] for name, one in named.items() if one is not None}


def _load() -> tuple[Any, Any, Any]:
    """Import it from where this version of torch has it.

    Raises:
        UnsupportedJobError: if it is older than FSDP2.
    """
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import (
                CPUOffloadPolicy,
                MixedPrecisionPolicy,
                fully_shard,
            )
        except ImportError:
            raise UnsupportedJobError(
                f"distributed: torch {torch.__version__} has no fully_shard; use the strategy fsdp"
            ) from None
    return fully_shard, MixedPrecisionPolicy, CPUOffloadPolicy
