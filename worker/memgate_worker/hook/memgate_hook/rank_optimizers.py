"""ZeRO and FSDP without the other ranks, whose states they collect; DeepSpeed compares itself."""

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


def know_states_of_others(utils: Any) -> None:
    """Change ``torch.distributed.fsdp._optim_utils``: ranks ask which weights have a state.

    A weight of which this rank has no part has none here, and has one where its parts are.
    """
    ask = utils._map_param_key_to_optim_keys

    @wraps(ask)
    def ask_for_all(
        optim_state_dict: Any,
        group: Any,
        param_key_to_param: Any,
        param_to_fqns: Any,
        fqn_to_fsdp_param_info: Any,
        merge_keys: bool = False,
    ) -> Any:
        weights = param_key_to_param.values()
        keys, own = ask(
            optim_state_dict,
            group,
            param_key_to_param,
            param_to_fqns,
            fqn_to_fsdp_param_info,
            merge_keys,
        )
        if not merge_keys:
            return keys, own
        elsewhere = {
            utils._OptimStateKey(tuple(param_to_fqns[weight]), True)
            for weight in weights
            if weight.requires_grad
            and weight.numel() == 0
            and param_to_fqns[weight][0] in fqn_to_fsdp_param_info
        }
        return sorted({*keys, *elsewhere}), own

    utils._map_param_key_to_optim_keys = ask_for_all
