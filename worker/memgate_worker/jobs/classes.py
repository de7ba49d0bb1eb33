"""The name of a transformers class -> the class, if it is a model that can be trained."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from memgate.errors import InputError
from memgate.mistakes import Mistake, show_value, suggest, unknown_name

#: how classes are named, unlike modules and functions; of one family, xLSTM, with a small letter
_CLASS = re.compile("x?[A-Z][A-Za-z0-9_]*")

#: these choose a class by a configuration
_AUTO = re.compile("Auto(Model|Backbone)")

_KIND = "model.config.model_type"

#: classes with a head, of PyTorch
_TRAINABLE = re.compile(r"(?!TF|Flax|AutoModel|Load|MODEL|is_)\w*([a-z0-9]For[A-Z]\w*|HeadModel)$")

_MAX_SHOWN = 5

_NO_SUCH = "transformers has no such class"


def choose_class(name: str, settings: Mapping[str, Any]) -> str:
    """Return the class that one of transformers' ``AutoModel...`` stands for, by a configuration.

    Any other name is returned as it is.

    Raises:
        InputError: if the configuration does not say of which type it is, or there is no class of
            that type for the task.
    """
    import transformers

    auto = getattr(transformers, name, None) if _AUTO.match(name) else None
    by_config = getattr(auto, "_model_mapping", None)
    if by_config is None:
        return name
    by_type: Mapping[str, Any] = by_config._model_mapping
    kind = settings.get("model_type")
    if kind is None:
        rule = f"{name} chooses a class by it"
        step = "add it, as in config.json, or name the class itself in 'model.class'"
        missing = Mistake(field=_KIND, value="missing", rule=rule, next_step=step)
        raise InputError.from_mistakes(missing)
    if kind not in by_type:
        rule = f"{name} has no class for it"
        raise InputError.from_mistakes(unknown_name(_KIND, kind, list(by_type), rule=rule))
    chosen = by_type[kind]
    return str(chosen if isinstance(chosen, str) else chosen[0])


def find_class(name: str, field: str = "model.class", *, has_own_code: bool = False) -> Any:
    """Return a class of transformers that can be trained; ``field`` is where it is named.

    ``has_own_code``: it is published with code of its own, which is never loaded.

    Raises:
        InputError: if there is none of this name, with similar names.
    """
    import transformers

    found = getattr(transformers, name, None) if _CLASS.fullmatch(name) else None
    is_model = inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)
    if is_model and getattr(found, "config_class", None) and _has_loss(name, found):
        return found
    known = [one for one in dir(transformers) if _TRAINABLE.match(one)]
    if is_model:
        raise InputError.from_mistakes(_without_loss(name, known, field))
    if _AUTO.match(name):
        rule, known = "it stands for the class that 'architectures' in a config.json names", []
    elif found is not None:
        rule = "it is not a model"
    elif has_own_code:
        rule, known = f"{_NO_SUCH}, and code that is published with a model is never loaded", []
    else:
        rule = _NO_SUCH
    raise InputError.from_mistakes(unknown_name(field, name, known, rule=rule))


def list_heads(name: str) -> list[str]:
    """Return the classes of the same family that can be trained, by the names that they have."""
    import transformers

    family = re.split(r"(?<=[a-z0-9])For|LMHead|Double", name)[0]
    heads = re.compile(rf"{re.escape(family)}(For|LMHead|Double)")
    return [one for one in dir(transformers) if heads.match(one) and _TRAINABLE.match(one)]


def _has_loss(name: str, model_class: Any) -> bool:
    """Say whether a model computes a loss: bare models and base classes do not."""
    if not name.endswith("Model") or name.endswith("HeadModel"):
        return True
    parameters = inspect.signature(model_class.forward).parameters
    return any("label" in one or "loss" in one for one in parameters)


def _without_loss(name: str, known: list[str], field: str) -> Mistake:
    family = re.escape(name.removesuffix("Model").removesuffix("PreTrained"))
    near = tuple(one for one in known if re.match(f"{family}(For|LMHead)", one))[:_MAX_SHOWN]
    return Mistake(
        field=field,
        value=show_value(name),
        rule="it has no loss of its own, so it cannot be trained as it is",
        next_step=suggest(near) if field == "model.class" else _say_class(near),
        near=near,
    )


def _say_class(near: tuple[str, ...]) -> str:
    """Say that the class by which a model is trained goes beside its configuration."""
    examples = f", such as {', '.join(near)}" if near else ""
    return f"add 'class' beside 'config'{examples}"
