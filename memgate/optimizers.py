"""An optimizer's name and what its step calls -> what it keeps, and makes, for each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

#: of a parameter, as most have it
_NUMBER_BYTES = 4

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
_LISTS_OF_STEP = {
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

#: to decay weights, or to maximize, these hold another list of gradients; others use one they have,
#: or let go of it in time
_CHANGE_GRADIENTS = frozenset({"Adadelta", "NAdam", "RMSprop", "SGD"})
_CHANGING = frozenset({"aten::add", "aten::neg"})

#: what these keep shows only in the operators that they call
_BY_OPTIONS = frozenset({"RMSprop", "SGD"})

#: where the operator that is called for the largest element keeps amsgrad's maximum
_HAVE_AMSGRAD = frozenset({"Adam", "AdamW"})


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
    return kept + ("maximum" in ops and name in _HAVE_AMSGRAD)


def keep_alike(names: Iterable[str]) -> bool:
    """Say whether optimizers keep equally much, whatever their options are."""
    kept = {None if name in _BY_OPTIONS else _KEPT.get(name) for name in names}
    return len(kept) <= 1 and None not in kept


def count_lists(name: str, called: Sequence[str]) -> int | None:
    """Return how many lists as large as all gradients a step holds at once on a GPU.

    None of an optimizer that is not known: it is a loop there, too.

    Args:
        name: its class.
        called: the operators that its steps call on a CPU, in order.
    """
    num_lists = _LISTS_OF_STEP.get(name)
    if num_lists is None or name not in _CHANGE_GRADIENTS:
        return num_lists
    if name == "SGD":  # Nesterov's momentum adds, too, but not before anything else
        return num_lists + (called[:1] != [] and called[0] in _CHANGING)
    if name == "Adadelta":  # it adds before each of its roots
        return num_lists + (called.count("aten::add") > called.count("aten::sqrt_"))
    return num_lists + (not _CHANGING.isdisjoint(called))


def find_largest_of_step(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return what a step makes beside its lists, for one parameter after the other: the largest.

    Rprop chooses with a mask, of a byte for each number, where its gradients are set to zero.
    """
    if name != "Rprop" or not sizes:
        return ()
    largest = max(sizes)
    return (largest // _NUMBER_BYTES, largest)


def _plain(op: str) -> str:
    """Return the name that an operator has on one tensor and on lists of them."""
    return op.removeprefix("aten::").removeprefix("_").removeprefix("foreach_").removesuffix("_")
