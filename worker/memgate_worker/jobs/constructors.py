"""Models of torchvision and timm: by name, with the arguments that their constructors use.

Weights are never loaded. An argument that a constructor would silently ignore is refused: the
answer would be for another model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from memgate.errors import InputError
from memgate.jobspec import ModelSpec
from memgate.mistakes import Mistake, show_value, suggest, unknown_field, unknown_name
from memgate.near_names import find_near
from memgate_worker.jobs.arguments import declared_arguments, find_arguments
from memgate_worker.jobs.seal import sealed

#: arguments that load weights, or say where from
_WEIGHTS = frozenset(
    {
        *("weights", "weights_backbone", "pretrained", "pretrained_backbone"),
        *("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict"),
        *("pretrained_filter_fn", "cache_dir"),
    }
)

#: an argument that nothing takes
_NO_ARGUMENT = "memgate_takes_no_such_argument"

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def build_torchvision(spec: ModelSpec) -> nn.Module:
    """Build a model of torchvision.

    Raises:
        InputError: if there is no such model, or it takes no such argument.
    """
    import torchvision

    known = torchvision.models.list_models()
    name = str(spec.name).lower()  # as torchvision does
    if name not in known:
        mistake = unknown_name("model.name", spec.name, known, rule="torchvision has no such model")
        raise InputError.from_mistakes(mistake)
    builder = torchvision.models.get_model_builder(name)
    # A backbone's weights are loaded unless told otherwise.
    weights = {"weights", "weights_backbone"} & declared_arguments(builder)
    return _construct(spec, builder, partial(builder, **dict.fromkeys(weights)))


def build_timm(spec: ModelSpec) -> nn.Module:
    """Build a model of timm.

    Raises:
        InputError: if there is no such model, or it takes no such argument.
    """
    import timm

    name = str(spec.name)
    if not timm.is_model(name) or re.search(r"[:/\\]", name):
        raise InputError.from_mistakes(_unknown_timm_model(name, timm.list_models()))
    builder = timm.model_entrypoint(name)
    return _construct(spec, builder, partial(timm.create_model, name, pretrained=False))


def _unknown_timm_model(name: str, known: list[str]) -> Mistake:
    rule, wanted = "timm has no such model", name
    if re.search(r"[:/\\]", name):
        rule = "models of timm are named; none is read from a file or a server"
        wanted = re.split(r"[:/\\]", name)[-1]
    near = find_near(wanted, known)
    return Mistake(
        field="model.name",
        value=show_value(name),
        rule=rule,
        next_step=suggest(near),
        near=near,
    )


def _construct(
    spec: ModelSpec, builder: Callable[..., Any], make: Callable[..., nn.Module]
) -> nn.Module:
    """Build a model, and refuse arguments that its constructor does not use."""
    kwargs = _without_weights(spec.kwargs)
    try:
        with sealed():
            model = make(**kwargs)
    except TypeError as error:
        found = _UNEXPECTED.search(str(error))
        if found is None or found[1] not in kwargs:
            raise
        raise _unused(spec, [found[1]], find_arguments(builder)) from error
    unclear = kwargs.keys() - declared_arguments(builder) - declared_arguments(type(model))
    if unclear:
        known = find_arguments(builder) | declared_arguments(make.func)  # type: ignore[attr-defined]
        ignored = sorted(unclear - known)
        if ignored and _ignores_arguments(make, kwargs, ignored):
            raise _unused(spec, ignored, known)
    return model


def _without_weights(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out arguments that say to load no weights; refuse those that name some.

    Raises:
        InputError: if weights would be loaded.
    """
    mistakes = [
        Mistake(
            field=f"model.kwargs.{name}",
            value=show_value(value),
            rule="weights are never loaded: what they hold does not change what a job needs",
            next_step="leave it out",
        )
        for name, value in kwargs.items()
        if name in _WEIGHTS and value not in (None, False)
    ]
    if mistakes:
        raise InputError.from_mistakes(*mistakes)
    return {name: value for name, value in kwargs.items() if name not in _WEIGHTS}


def _ignores_arguments(
    make: Callable[..., nn.Module], kwargs: Mapping[str, Any], doubtful: list[str]
) -> bool:
    """Say whether a constructor accepts any argument at all, and so does not check its own."""
    others = {name: value for name, value in kwargs.items() if name not in doubtful}
    try:
        with sealed():
            make(**others, **{_NO_ARGUMENT: 0})
    except TypeError as error:
        return _NO_ARGUMENT not in str(error)
    return True


def _unused(spec: ModelSpec, names: list[str], known: frozenset[str]) -> InputError:
    visible = sorted(name for name in known - _WEIGHTS if not name.startswith("_"))
    return InputError.from_mistakes(
        *(
            unknown_field(
                f"model.kwargs.{name}",
                spec.kwargs[name],
                visible,
                rule=f"{spec.name} takes no such argument",
            )
            for name in names
        )
    )
