"""ZeRO without the other ranks: PyTorch's optimizer, which collects states, and DeepSpeed's."""

from __future__ import annotations

import io
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist


def receive_own_state(module: Any) -> None:
    """Change ``torch.distributed.optim.zero_redundancy_optimizer``.

    It has its own way of sending objects, with the length first. Another rank's state is taken to
    be this one's, and is received on the same device and in as many bytes.
    """
    broadcast = module._broadcast_object
    optimizer = module.ZeroRedundancyOptimizer
    consolidate = optimizer.consolidate_state_dict
    own: dict[str, Any] = {}

    @wraps(consolidate)
    def consolidate_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        own["state"] = self.optim.state_dict()
        try:
            return consolidate(self, *args, **kwargs)
        finally:
            own.clear()

    def broadcast_object(obj: Any, src_rank: int, group: Any = None, device: Any = "cpu") -> Any:
        if src_rank == dist.get_rank() or not own:
            return broadcast(obj, src_rank, group, device)
        file = io.BytesIO()
        torch.save(own["state"], file)
        received = torch.empty([file.tell()], dtype=torch.uint8, device=device)
        dist.broadcast(received, src=src_rank, group=group, async_op=False)
        file.seek(0)
        return torch.load(file, map_location=device, weights_only=False)

    optimizer.consolidate_state_dict = consolidate_state_dict
    module._broadcast_object = broadcast_object


def compare_with_oneself(utils: Any) -> None:
    """Change ``deepspeed.runtime.zero.utils``: ranks check that all go through the same modules.

    The first one sends its list, and the others have something else in the place of it until then.
    """
    ask = utils.get_lst_from_rank0

    def hear_own_list(numbers: Any) -> Any:
        ask(numbers)
        return list(numbers)

    utils.get_lst_from_rank0 = hear_own_list
    utils.assert_lst_len_same_as_other_ranks = lambda numbers: None
