"""Tensor parallelism: the layers that a model of transformers names are divided, by DTensor."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from memgate.errors import InputError, UnsupportedJobError
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.distributed.sharding import forget_weights

#: what transformers calls ways to divide a layer -> that its output is put together again
_COLUMNS = {"colwise": False, "colwise_rep": True, "colwise_gather_output": True}
_ROWS = frozenset({"rowwise"})


def divide_layers(model: nn.Module, mesh: Any) -> nn.Module:
    """Divide a model's linear layers as its own plan says, on ``meta``; the rest is on every GPU.

    Raises:
        UnsupportedJobError: if the model has no plan, or one that memgate does not know.
        InputError: if its heads do not divide.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    _check_heads(model, mesh.size())
    plan: dict[str, Any] = {}
    for name, how in _find_plan(model).items():
        if how in _COLUMNS:
            together = {"output_layouts": Replicate()} if _COLUMNS[how] else {}
            plan[name] = ColwiseParallel(**together)
        elif how in _ROWS:
            plan[name] = RowwiseParallel()
        else:
            raise UnsupportedJobError(
                f"distributed: {type(model).__name__} divides {name} as {how!r}, which memgate does"
                " not know; use your own script instead of a spec: memgate run"
            )
    forget_weights(model)
    return parallelize_module(model, mesh, plan)


def group_alike(parameters: list[Any]) -> list[Any]:
    """Return parameters as an optimizer takes them: those of one mesh, or of none, in a group.

    Its steps work on many parameters at once, and those must be divided over the same GPUs.
    """
    groups: dict[str, list[Any]] = {}
    for one in parameters:
        groups.setdefault(str(getattr(one, "device_mesh", None)), []).append(one)
    return parameters if len(groups) == 1 else [{"params": group} for group in groups.values()]


def _find_plan(model: nn.Module) -> dict[str, str]:
    """Return how each layer is divided, by its path; the model's plan has patterns."""
    given = dict(getattr(model, "_tp_plan", None) or {})
    base = getattr(model, "base_model_prefix", "")
    inner = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    for name, how in inner.items():
        given.setdefault(f"{base}.{name}", how)
    patterns = [
        (re.compile(re.escape(name).replace(r"\*", r"\d+")), how) for name, how in given.items()
    ]
    found = {
        name: how
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        for pattern, how in patterns
        if pattern.fullmatch(name)
    }
    if not found:
        raise UnsupportedJobError(
            f"distributed: {type(model).__name__} has no plan for tensor parallelism, and memgate"
            " does not make one up; use your own script instead of a spec: memgate run"
        )
    return found


def _list_divisors(config: Any) -> str:
    """Return the degrees that divide all heads of a model, for a sentence."""
    heads = [
        count
        for name in ("num_attention_heads", "num_key_value_heads")
        if (count := getattr(config, name, None))
    ]
    return ", ".join(
        str(one) for one in range(1, min(heads) + 1) if not any(n % one for n in heads)
    )


def _check_heads(model: nn.Module, degree: int) -> None:
    config: Any = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None) or degree
        if heads % degree:
            mistake = Mistake(
                field="distributed.tp_degree",
                value=show_value(degree),
                rule=f"it does not divide the model's {heads} heads ({name})",
                next_step=f"give one that does ({_list_divisors(config)}): with the strategy tp it"
                " is world_size, with fsdp2 it is tp_degree",
            )
            raise InputError.from_mistakes(mistake)
