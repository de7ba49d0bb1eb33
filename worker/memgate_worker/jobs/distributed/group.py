"""The process group of a job, and the meshes of ranks that strategies divide over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from memgate.jobspec import DistributedSpec, Strategy

_DEVICE = "cuda"


@contextmanager
def joined_group(spec: DistributedSpec | None) -> Iterator[None]:
    """Be one of the ranks of a job, as its environment variables say; nothing for a job of one."""
    if spec is None:
        yield
        return
    torch.cuda.set_device(0)  # each rank sees its own GPU alone
    dist.init_process_group("nccl")
    try:
        yield
    finally:
        dist.destroy_process_group()


def make_mesh(spec: DistributedSpec) -> Any:
    """Return the ranks in the dimensions that the strategy divides over, by name."""
    from torch.distributed.device_mesh import init_device_mesh

    world = spec.world_size
    if spec.strategy is Strategy.HSDP:
        shape: tuple[int, ...] = (spec.num_replicas, world // spec.num_replicas)
        return init_device_mesh(_DEVICE, shape, mesh_dim_names=("replicate", "shard"))
    if spec.strategy is Strategy.TP:
        return init_device_mesh(_DEVICE, (world,), mesh_dim_names=("tp",))
    if spec.tensor_degree > 1:
        shape = (world // spec.tensor_degree, spec.tensor_degree)
        return init_device_mesh(_DEVICE, shape, mesh_dim_names=("shard", "tp"))
    return init_device_mesh(_DEVICE, (world,), mesh_dim_names=("shard",))
