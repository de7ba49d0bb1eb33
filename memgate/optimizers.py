"""An optimizer's name and what its step calls -> what it keeps for each parameter."""

from __future__ import annotations

from collections.abc import Mapping

#: tensors as large as a parameter that an optimizer of PyTorch keeps for it
_KEPT = {
    "ASGD": 1,
    "Adadelta": 2,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "NAdam": 2,
    "RAdam": 2,
    "RMSprop": 1,
    "Rprop": 2,
    "SGD": 0,
}

#: of PyTorch, and not modelled: what they make in a step on a GPU is not what they make on a CPU
NOT_MODELLED = frozenset({"Adafactor", "LBFGS", "Muon", "SparseAdam"})

#: what they keep is made with them, not by their first step
MADE_WITH_THE_OPTIMIZER = frozenset({"Adagrad"})

#: lists as large as all gradients that torch.optim holds at once when it goes over lists of tensors
LISTS_OF_STEP = {
    "ASGD": 1,
    "Adadelta": 2,
    "Adagrad": 2,
    "Adam": 1,
    "AdamW": 1,
    "Adamax": 1,
    "NAdam": 1,
    "RAdam": 1,
    "RMSprop": 1,
    "Rprop": 1,
    "SGD": 0,
}


def count_kept(name: str, called: Mapping[str, int]) -> int | None:
    """Return how many tensors are kept for each parameter; None of an optimizer that is not known.

    Args:
        name: its class.
        called: how often its steps call each operator: options show in them.
    """
    kept = _KEPT.get(name)
    if kept is None:
        return None
    ops = {_plain(op) for op in called}
    if name == "SGD":  # the buffer of momentum is multiplied
        return int(bool(ops & {"mul", "fused_sgd"}))
    if name == "RMSprop":
        times = {op: sum(called[one] for one in called if _plain(one) == op) for op in ops}
        has_momentum = times.get("mul", 0) > times.get("addcdiv", 0)
        return kept + ("lerp" in ops) + has_momentum  # lerp: of the mean, if it is centered
    return kept + ("maximum" in ops)  # amsgrad


def _plain(op: str) -> str:
    """Return the name that an operator has on one tensor and on lists of them."""
    return op.removeprefix("aten::").removeprefix("_").removeprefix("foreach_").removesuffix("_")
