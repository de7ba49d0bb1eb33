"""Model, DistributedSpec -> the parts of it that FSDP collects and drops on their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from memgate.errors import InputError
from memgate.jobspec import DistributedSpec, Wrap
from memgate.mistakes import Mistake, show_value, unknown_name


def find_blocks(model: nn.Module, spec: DistributedSpec) -> list[nn.Module]:
    """Return the parts of a model, inner ones first; none if it is divided as a whole.

    Raises:
        InputError: if the model has no such parts.
    """
    if spec.wrap is Wrap.NONE:
        return []
    if spec.wrap is Wrap.SIZE:
        return _find_large(model, spec.least_parameters)
    names = set(spec.wrap_classes)
    if names:
        known = {type(module).__name__ for module in model.modules()}
        for name in sorted(names - known):
            rule = "the model has no part of this class"
            mistake = unknown_name("distributed.wrap_classes", name, sorted(known), rule=rule)
            raise InputError.from_mistakes(mistake)
    else:
        names = _own_choice(model)
    if names:
        found = [one for one in model.modules() if type(one).__name__ in names]
    else:
        found = list(_find_repeated(model))
    if not found:
        mistake = Mistake(
            field="distributed.wrap",
            value=show_value(spec.wrap or Wrap.BLOCKS),
            rule=f"{type(model).__name__} has no repeated blocks that memgate knows",
            next_step="give 'wrap_classes', or 'wrap: size' or 'none'",
        )
        raise InputError.from_mistakes(mistake)
    return found[::-1]


def _own_choice(model: nn.Module) -> set[str]:
    """Return the classes that a model of transformers names itself, as accelerate asks for them."""
    inner: Any = model
    if hasattr(model, "get_base_model"):  # of peft
        inner = model.get_base_model()
    return set(getattr(inner, "_no_split_modules", None) or ())


def _find_repeated(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of lists of modules of one class, the outermost lists alone."""
    for child in module.children():
        members = list(child.children())
        is_list = isinstance(child, (nn.ModuleList, nn.Sequential))
        if is_list and len(members) > 1 and len({type(one) for one in members}) == 1:
            yield from members
        else:
            yield from _find_repeated(child)


def _find_large(model: nn.Module, least: int) -> list[nn.Module]:
    """Return what ``size_based_auto_wrap_policy`` would wrap, inner parts first."""
    found: list[nn.Module] = []

    def look(module: nn.Module) -> int:
        """Return how many parameters in it are wrapped."""
        total = sum(one.numel() for one in module.parameters())
        if total < least:
            return 0
        wrapped = sum(look(child) for child in module.children())
        is_container = isinstance(module, (nn.ModuleList, nn.ModuleDict))
        if module is model or is_container or total - wrapped < least:
            return wrapped
        found.append(module)
        return total

    look(model)
    return found
