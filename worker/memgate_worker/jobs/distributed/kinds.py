"""A divided job, as one rank has it -> the other ranks that were given something else.

A rank that was given the same does the same: it need not be run. Where nothing is known, the last
rank is taken to differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from memgate.jobspec import DistributedSpec, Strategy


def find_unlike_ranks(spec: DistributedSpec | None, job: Any) -> tuple[int, ...]:
    """Return the ranks that must be run besides the first."""
    if spec is None:
        return ()
    model = getattr(job, "model", None)
    if spec.strategy is Strategy.ZERO1:
        return (spec.world_size - 1, *_find_largest(job.optimizers))
    is_alike = spec.strategy is Strategy.DDP or (
        isinstance(model, nn.Module) and all(_divide_evenly(model))
    )
    return () if is_alike else (spec.world_size - 1,)


def _find_largest(optimizers: Sequence[Optimizer]) -> Iterator[int]:
    """Yield the rank that was given the most parameters: the largest are dealt out first."""
    for one in optimizers:
        if hasattr(one, "_partition_parameters"):
            sizes = [
                sum(parameter.numel() for group in groups for parameter in group["params"])
                for groups in one._partition_parameters()
            ]
            yield sizes.index(max(sizes))


def _divide_evenly(model: nn.Module) -> Iterator[bool]:
    """Yield for each parameter, or each row of them, whether all ranks have as much of it."""
    from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles

    handles = _get_fsdp_handles(model)
    for handle in handles:
        flat: Any = handle.flat_param
        size = flat._unpadded_unsharded_size.numel()
        yield size % handle.world_size == 0 and not any(flat._is_padding_mask)
    for one in model.parameters():
        for dimension, placement in enumerate(getattr(one, "placements", ())):
            if placement.is_shard():
                yield one.shape[placement.dim] % one.device_mesh.size(dimension) == 0
