"""``FullyShardedDataParallel``: the parameters of each block become one, and that is divided."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memgate.jobspec import DistributedSpec, MixedPrecisionSpec, Strategy
from memgate_worker.jobs.distributed.blocks import find_blocks
from memgate_worker.jobs.distributed.group import make_mesh
from memgate_worker.jobs.models import WithoutFilling

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def shard_flat(model: nn.Module, spec: DistributedSpec) -> nn.Module:
    """Divide a model on the CPU; each block is moved to the GPU to be divided, one by one."""
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    blocks = set(find_blocks(model, spec))
    if spec.strategy is Strategy.HSDP:
        whole, dropped = ShardingStrategy._HYBRID_SHARD_ZERO2, ShardingStrategy.HYBRID_SHARD
    else:
        whole, dropped = ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD
    more: dict[str, Any] = {}
    if spec.strategy is Strategy.HSDP:
        more["device_mesh"] = make_mesh(spec)
    with WithoutFilling():
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=CustomPolicy(lambda module: module in blocks),
            sharding_strategy=dropped if spec.drops_weights else whole,
            mixed_precision=_precision(spec.mixed_precision),
            cpu_offload=CPUOffload(offload_params=True) if spec.cpu_offload else None,
            device_id=torch.cuda.current_device(),
            use_orig_params=spec.use_orig_params is not False,
            **more,
        )


def _precision(given: MixedPrecisionSpec | None) -> Any:
    if given is None:
        return None
    from torch.distributed.fsdp import MixedPrecision

    return MixedPrecision(
        param_dtype=TYPES[given.param] if given.param else None,
        reduce_dtype=TYPES[given.reduce] if given.reduce else None,
        buffer_dtype=TYPES[given.buffer] if given.buffer else None,
    )
