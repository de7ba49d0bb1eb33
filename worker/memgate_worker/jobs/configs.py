"""Models of transformers: by class and configuration, or by a public name. Never a download.

A configuration accepts any key and ignores those that it does not know, so keys are checked here. A
published ``config.json`` has keys that no version of transformers reads any more: if a
configuration is recognised as one, only keys that look misspelt are refused.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import ModelSpec
from memgate.mistakes import Mistake, show_value, unknown_field, unknown_name
from memgate.near_names import find_near
from memgate_worker.jobs.arguments import declared_arguments, find_arguments
from memgate_worker.jobs.classes import choose_class, find_class, list_heads
from memgate_worker.jobs.config_keys import COMMON, DTYPES, LEFT_OUT, PUBLISHED, SIZES, is_token
from memgate_worker.jobs.public import PublicModel, find_public_model
from memgate_worker.jobs.seal import sealed

_FIELD = "model.config"

#: how similar, up to 1, an unknown key must be to a known one that was meant
_MISSPELT = 0.9

#: keys that may name a model of timm, but not a path or a model on the hub
_NAMES = ("backbone", "architecture", "attn_implementation")

#: what models call their configuration
_CONFIGS = ("config", "self.config")

_LOADED = "use_pretrained_backbone"


def build_transformers(spec: ModelSpec) -> nn.Module:
    """Build a model of transformers.

    Raises:
        InputError: if there is no such class or public model, or its configuration has a key that
            would be ignored.
        UnsupportedJobError: if the configuration says that the weights are quantized.
    """
    class_name, settings = find_config(spec)
    is_whole = spec.name is None and spec.class_name is None
    field = f"{_FIELD}.architectures" if is_whole else "model.class"
    model_class = find_class(class_name, field, has_own_code=is_whole and "auto_map" in settings)
    with sealed():
        config = make_config(model_class, settings)
        attention = settings.get("attn_implementation")
        chosen = {} if attention is None else {"attn_implementation": attention}
        model: nn.Module = model_class._from_config(config, **chosen)
    if settings.get("tie_word_embeddings") is False:
        _untie(model)
    return model


def _untie(model: Any) -> None:
    """Give the head weights of its own, as those that are published have.

    transformers 5 ties the head of a T5 whatever its configuration says, and unties it again when
    it loads weights that differ, which we never do.
    """
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and table is not None and head.weight is table.weight:
        head.weight = nn.Parameter(torch.empty_like(table.weight))


def find_config(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """Return the class of a transformers model and the arguments of its configuration.

    A public model may be named without its owner, as ``gpt2`` (see ``public``).

    Raises:
        InputError: if the model is named and our table has no such name, or if no class can be
            chosen for the configuration.
    """
    if spec.name is not None:
        public = find_public_model(spec.name)
        settings = public.config | spec.config
        if spec.architecture is None:
            return public.class_name, settings
        return _choose_head(spec, public), settings
    assert spec.architecture is not None, "a spec has one or the other"
    return choose_class(spec.architecture, spec.config), dict(spec.config)


def _choose_head(spec: ModelSpec, public: PublicModel) -> str:
    """Return the class that a spec names beside a public model, if that takes such a model."""
    assert spec.architecture is not None
    kind = find_class(public.class_name).config_class
    chosen = choose_class(spec.architecture, {"model_type": kind.model_type})
    field = "model.class" if spec.class_name else f"{_FIELD}.architectures"
    if find_class(chosen, field).config_class is kind:
        return chosen
    rule = f"it is not a class for {public.name}, which is published as {public.class_name}"
    known = list_heads(public.class_name)
    raise InputError.from_mistakes(unknown_name(field, chosen, known, rule=rule))


def make_config(model_class: Any, settings: Mapping[str, Any]) -> Any:
    """Make a configuration, and refuse keys that it would ignore."""
    config_class = model_class.config_class
    _check_kind(config_class, settings)
    given = _cleaned(settings, LEFT_OUT | {_LOADED, "attn_implementation"})
    if _LOADED in declared_arguments(config_class):  # it is loaded unless told otherwise
        given[_LOADED] = False
    unknown = [
        one
        for one in _find_unknown_of(model_class, settings)
        if not _is_taken_by_a_part(one, config_class, given)
    ]
    mistakes = [*_find_paths(settings), *unknown]
    if mistakes:
        raise InputError.from_mistakes(*mistakes)
    config = config_class(**given)
    mistakes = list(_find_unknown_below(_FIELD, config, settings))
    if mistakes:
        raise InputError.from_mistakes(*mistakes)
    return config


def _is_taken_by_a_part(unknown: Mistake, config_class: Any, given: Mapping[str, Any]) -> bool:
    """Say whether a configuration hands a key that it does not know itself to one of its parts.

    Those of some models of images and text are published flat: what belongs in ``text_config``
    stands beside it.
    """
    import transformers

    key = unknown.field.removeprefix(f"{_FIELD}.")
    if key not in given or not getattr(config_class, "sub_configs", None):
        return False
    parts = vars(config_class(**given)).values()
    return any(
        hasattr(part, key) and getattr(part, key) == given[key]
        for part in parts
        if isinstance(part, transformers.PretrainedConfig)
    )


def _check_kind(config_class: Any, settings: Mapping[str, Any]) -> None:
    """Refuse a configuration of another kind of model, or of quantized weights."""
    kind = settings.get("model_type", config_class.model_type)
    if kind != config_class.model_type:
        raise InputError.from_mistakes(
            Mistake(
                field=f"{_FIELD}.model_type",
                value=show_value(kind),
                rule=f"the configuration of this class is of the type {config_class.model_type!r}",
                next_step="give the class that 'architectures' names, or the part of the"
                " configuration that is meant for this one",
            )
        )
    if settings.get("quantization_config"):
        raise UnsupportedJobError.from_mistakes(
            Mistake(
                field=f"{_FIELD}.quantization_config",
                value=show_value(settings["quantization_config"]),
                rule="memgate cannot run quantized models yet",
                next_step="without it the answer would be for another job (weights as 'precision'"
                " says); use your own training script instead of a spec, or a trace of it",
            )
        )


def _cleaned(settings: Mapping[str, Any], left_out: frozenset[str]) -> dict[str, Any]:
    """Leave out some keys, and at every level the type in which weights were stored.

    The job's ``precision`` says which type its weights have.
    """
    return {
        name: _cleaned(value, frozenset()) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name not in left_out | DTYPES
    }


def _find_paths(settings: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what names a file, or a model on a server, where a library's model is expected."""
    for name in _NAMES:
        value = settings.get(name)
        if isinstance(value, str) and re.search(r"[:/\\]", value):
            yield Mistake(
                field=f"{_FIELD}.{name}",
                value=show_value(value),
                rule="nothing is read from a file or a server while a model is built",
                next_step="give its configuration ('backbone_config') instead"
                if name == "backbone"
                else "leave it out, or name what a library has",
            )


def _find_unknown_of(model_class: Any, settings: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the keys that neither a configuration nor its model uses."""
    config_class = model_class.config_class
    quick = declared_arguments(config_class) | set(config_class.attribute_map) | COMMON
    if settings.keys() - quick or settings.get("gradient_checkpointing"):
        known = _known_keys(config_class)
        if not getattr(config_class, "sub_configs", None):  # the model reads the parts of those
            known |= _keys_read_by(model_class)
        yield from _find_unknown(_FIELD, settings, known, is_published=_is_published(settings))


def _known_keys(config_class: Any) -> frozenset[str]:
    """Return every key that a configuration uses."""
    try:
        own = frozenset(vars(config_class()))
    except Exception:  # some cannot be made without arguments
        own = frozenset()
    settable = {
        name
        for name, member in inspect.getmembers(config_class)
        if isinstance(member, property) and member.fset is not None
    }
    taken = find_arguments(config_class) | set(config_class.attribute_map)
    return frozenset(own | settable | taken | COMMON | {_LOADED})


def _keys_read_by(model_class: Any) -> frozenset[str]:
    """Return the keys that a model itself looks up in its configuration."""
    source = "".join(linecache.getlines(inspect.getfile(model_class)))
    return frozenset(_keys_read(ast.walk(ast.parse(source))))


def _keys_read(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield ``key`` of each ``config.key`` and ``getattr(config, "key", ...)``."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in _CONFIGS:
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            looked_in, key = [*node.args, None, None][:2]
            if looked_in and ast.unparse(looked_in) in _CONFIGS and isinstance(key, ast.Constant):
                yield str(key.value)


def _is_published(settings: Mapping[str, Any]) -> bool:
    return bool(PUBLISHED & settings.keys())


def _find_unknown(
    field: str, settings: Mapping[str, Any], known: frozenset[str], *, is_published: bool
) -> Iterator[Mistake]:
    """Yield the unknown keys; for a published configuration only those that matter."""
    visible = sorted(name for name in known - COMMON if not name.startswith("_"))
    for name, value in settings.items():
        if name == "gradient_checkpointing" and value:
            yield Mistake(
                field=f"{field}.{name}",
                value=show_value(value),
                rule="it has no effect in a configuration",
                next_step="write 'gradient_checkpointing': true beside 'model'",
            )
        elif name not in known and not is_token(name):
            rule = "the configuration has no such key"
            mistake = unknown_field(f"{field}.{name}", value, visible, rule=rule)
            if not is_published or _is_meant(name, mistake.near):
                yield mistake


def _is_meant(name: str, near: tuple[str, ...]) -> bool:
    """Say whether an unknown key was meant to be one of some known keys."""
    return bool(near) and (name in SIZES or name in find_near(near[0], [name], likeness=_MISSPELT))


def _find_unknown_below(field: str, config: Any, settings: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield unknown keys of the configurations that are part of one."""
    import transformers

    is_published = _is_published(settings)
    for name, value in settings.items():
        part = getattr(config, name, None)
        if isinstance(value, dict) and isinstance(part, transformers.PretrainedConfig):
            inner, known = f"{field}.{name}", _known_keys(type(part))
            yield from _find_unknown(inner, value, known, is_published=is_published)
            yield from _find_unknown_below(inner, part, value)
