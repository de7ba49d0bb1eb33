"""LoraSpec, model on its device -> the model with an adapter of peft, which alone is trained."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from torch import nn

from memgate.errors import InputError
from memgate.jobspec import LoraSpec
from memgate.mistakes import Mistake, show_value, unknown_field, unknown_name
from memgate_worker.jobs.libraries import need_library

#: what people call LoRA with one of its switches
_VARIANTS: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
}

#: what a class of transformers is for -> what peft calls that
_TASK_TYPES = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}

#: what the scripts of diffusers add LoRA to; peft knows no choice for its models
_OF_DIFFUSERS = ("to_q", "to_k", "to_v", "to_out.0")

#: of ``get_peft_model`` itself: whether weights of an adapter in 16 bits are made 32 (they are)
_OF_PEFT = "autocast_adapter_dtype"

_NO_ARGUMENT = "this method of peft takes no such argument"
_DEFAULT_RANK = 8


def add_adapter(model: nn.Module, spec: LoraSpec) -> nn.Module:
    """Freeze a model and add an adapter to it.

    Raises:
        InputError: if peft has no such method, or cannot add it to this model.
        LibraryMissingError: if the runtime lacks peft.
    """
    peft = need_library("peft", "lora")
    if spec.target_modules is None and type(model).__module__.startswith("diffusers."):
        spec = spec.model_copy(update={"target_modules": _OF_DIFFUSERS})
    of_peft = {name: value for name, value in spec.kwargs.items() if name == _OF_PEFT}
    of_method = {name: value for name, value in spec.kwargs.items() if name != _OF_PEFT}
    config = make_config(spec.model_copy(update={"kwargs": of_method}), model)
    try:
        with_adapter: nn.Module = peft.get_peft_model(model, config, **of_peft)
    except (TypeError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())
        given = show_value(spec.model_dump(exclude_defaults=True, mode="json"))
        mistake = Mistake(
            field="lora",
            value=given,
            rule=f"peft cannot add it to {type(model).__name__}: {said}",
            next_step="name the layers in 'target_modules'; 'all-linear' names all linear ones",
        )
        raise InputError.from_mistakes(mistake) from error
    return with_adapter


def follow_step(model: nn.Module, num_steps: int) -> None:
    """Do what methods that move their rank about (AdaLoRA) ask of a loop after every step.

    They keep three more numbers for each of their weights, which tell what it is worth.
    """
    adapter: Any = getattr(model, "base_model", None)
    if hasattr(model, "peft_config") and hasattr(adapter, "update_and_allocate"):
        adapter.update_and_allocate(num_steps)


def make_config(spec: LoraSpec, model: nn.Module) -> Any:
    """Make the configuration of a method, for a model.

    Raises:
        InputError: if peft has no such method, it takes no such argument, or the model has no layer
            of a name that is given.
        LibraryMissingError: if the runtime lacks peft.
    """
    _check_targets(spec, model)
    return _configure(_find_method(spec.method), spec, type(model).__name__)


def _check_targets(spec: LoraSpec, model: nn.Module) -> None:
    """Refuse names of layers that the model does not have; peft skips them if it has others."""
    targets = spec.target_modules
    if targets is None or targets in (_ALL, _OF_DIFFUSERS):
        return
    is_pattern = isinstance(targets, str)
    given = (targets,) if isinstance(targets, str) else targets
    names = [name for name, _ in model.named_modules()]
    layers = [name for name, one in model.named_modules() if not any(one.children())]
    known = dict.fromkeys([name.rpartition(".")[2] for name in layers if name])
    rule = f"{type(model).__name__} has no layer of this name"
    mistakes = [
        unknown_name("lora.target_modules", one, [*known, _ALL], rule=rule)
        for one in given
        if not any(_is_meant(one, name, is_pattern=is_pattern) for name in names)
    ]
    if mistakes:
        raise InputError.from_mistakes(*mistakes)


def _is_meant(target: str, name: str, *, is_pattern: bool) -> bool:
    """Say whether peft takes a layer for one that is named: by its end, or by a pattern."""
    if is_pattern:
        try:
            return re.fullmatch(target, name) is not None
        except re.error:
            return False
    return name == target or name.endswith(f".{target}")


#: stands for all linear layers
_ALL = "all-linear"


def _find_method(name: str) -> Any:
    mapping = need_library("peft.mapping", "lora").PEFT_TYPE_TO_CONFIG_MAPPING
    # in older versions they are plain strings
    known = {str(getattr(one, "value", one)).lower(): config for one, config in mapping.items()}
    wanted = "lora" if name.lower() in _VARIANTS else name.lower()
    if wanted not in known:
        names = {*known, *_VARIANTS}
        rule = "peft has no such method"
        raise InputError.from_mistakes(unknown_name("lora.method", name, names, rule=rule))
    return known[wanted]


def _configure(config_class: Any, spec: LoraSpec, model_class: str) -> Any:
    known = {field.name for field in fields(config_class)}
    asked = _asked(spec, known)
    settings = asked | _VARIANTS.get(spec.method.lower(), {}) | spec.kwargs
    task_type = next((kind for end, kind in _TASK_TYPES.items() if model_class.endswith(end)), None)
    settings.setdefault("task_type", task_type)
    unknown = [
        unknown_field(f"lora.kwargs.{name}", value, known, rule=_NO_ARGUMENT)
        for name, value in spec.kwargs.items()
        if name not in known
    ]
    if unknown:
        raise InputError.from_mistakes(*unknown)
    try:
        return config_class(**settings)
    except (TypeError, ValueError) as error:
        mistake = Mistake(field="lora", value=show_value(settings), rule=str(error))
        raise InputError.from_mistakes(mistake) from error


def _asked(spec: LoraSpec, known: set[str]) -> dict[str, Any]:
    """Return the fields of a spec under the names that a method has for them."""
    names = {"rank": "r", "alpha": f"{_prefix(known)}alpha", "dropout": f"{_prefix(known)}dropout"}
    targets = spec.target_modules
    given = {
        "rank": spec.rank,
        "alpha": spec.alpha,
        "dropout": spec.dropout or None,
        "target_modules": list(targets) if isinstance(targets, tuple) else targets,
    }
    asked = {}
    for field, value in given.items():
        name = names.get(field, field)
        if name in known and value is not None:
            asked[name] = value
        elif value is not None:
            rule = f"the method {spec.method} has none"
            step = f"leave it out; it takes: {', '.join(sorted(known))}"
            raise InputError.from_mistakes(
                Mistake(field=f"lora.{field}", value=show_value(value), rule=rule, next_step=step)
            )
    if spec.rank is None and {"r", "lora_alpha"} <= known:
        asked["r"] = _DEFAULT_RANK
    return asked


def _prefix(known: set[str]) -> str:
    """LoRA's fields are called lora_alpha and lora_dropout, other methods' alpha and dropout."""
    return "lora_" if "lora_alpha" in known else ""
