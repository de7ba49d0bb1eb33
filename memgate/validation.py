"""A pydantic model, a document -> the model's value, or the mistakes in the document.

The only place that reads pydantic's errors: none of pydantic's wording reaches a person.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from memgate.errors import InputError
from memgate.mistakes import MAX_MISTAKES, Mistake, RuleError, show_value, suggest, unknown_field
from memgate.near_names import find_near

_Model = TypeVar("_Model", bound=BaseModel)


def validate(model: type[_Model], document: object, *, what: str) -> _Model:
    """Check a document that was read from JSON or YAML.

    Raises:
        InputError: naming each wrong field, its value, the rule and the next step.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        mistakes = explain_errors(error.errors(include_url=False), model)
        raise InputError.from_mistakes(*mistakes, what=what) from None


def explain_errors(
    errors: Iterable[Any],
    model: type[BaseModel] | None = None,
    *,
    secret: Collection[str] = (),
) -> tuple[Mistake, ...]:
    """Turn what pydantic found into mistakes.

    Args:
        errors: of ``ValidationError.errors()``, with their context.
        model: what was validated; its fields are the names to suggest from.
        secret: fields whose values are not shown.
    """
    found = [_without_tags(error) for error in list(errors)[:MAX_MISTAKES]]
    mistakes = (_explain(error, _describe_place(model, error["loc"])) for error in found)
    return tuple(
        replace(one, value="wrong") if one.field in secret else one  # as in: FIELD is wrong
        for one in mistakes
    )


#: which kind of a field's values was meant, and that a key is wrong
_TAG = re.compile(r"~|\[key\]$")


def _without_tags(error: Any) -> Any:
    """Leave out which kind of value a place was taken for: nobody wrote that."""
    loc = tuple(part for part in error["loc"] if not _TAG.match(str(part)))
    return {**error, "loc": loc}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where in a model an error is."""

    name: str
    #: what the model says about the field; None if it does not have the field
    info: FieldInfo | None
    #: the fields next to it
    siblings: tuple[str, ...]


def _describe_place(model: type[BaseModel] | None, loc: Sequence[str | int]) -> _Place:
    """Follow the names of an error through the models that they lead into."""
    info: FieldInfo | None = None
    siblings: tuple[str, ...] = ()
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        fields = _fields(model)
        info = fields.get(part)
        siblings = tuple(fields)
        if info is not None:
            model = _model_in(info.annotation)
        # otherwise it is a key of a dictionary, or not there at all
    return _Place(name=str(loc[-1]) if loc else "", info=info, siblings=siblings)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by the names that people write."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type such as ``Model | None`` or ``dict[str, Model]``."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    found = (_model_in(one) for one in get_args(annotation))
    return next((one for one in found if one is not None), None)


def _explain(error: Any, place: _Place) -> Mistake:
    kind, given = error["type"], error.get("input")
    field = ".".join(map(str, error["loc"]))
    if kind == "missing":
        return Mistake(field=field, value="missing", rule=_RULES[kind], next_step=_add(place))
    if kind == "extra_forbidden":
        return unknown_field(field, given, place.siblings)
    context: Mapping[str, Any] = error.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, RuleError):
        step, near = cause.next_step or _advise(kind, given, place), cause.near
    elif kind in ("enum", "literal_error"):
        near = find_near(given, re.findall(r"'([^']*)'", str(context.get("expected", ""))))
        step = suggest(near)
    else:
        step, near = _advise(kind, given, place), ()
    rule = _write_rule(kind, context, str(error["msg"]))
    mistake = Mistake(field=field, value=show_value(given), rule=rule, next_step=step, near=near)
    return _name_field(mistake, given) if isinstance(cause, RuleError) else mistake


#: how a rule begins that is about one field of an object: with its name, or with its value, too
_ABOUT = re.compile(r"(?P<field>\w+(\.\w+)*)( is [^:]*)?: (?P<rule>.*)", re.DOTALL)


def _name_field(mistake: Mistake, given: object) -> Mistake:
    """Put a mistake where the field is that its rule is about, if the object has that field."""
    about = _ABOUT.fullmatch(mistake.rule)
    if about is None:
        return mistake
    value = given
    for name in about["field"].split("."):
        if not isinstance(value, Mapping) or name not in value:
            return mistake
        value = value[name]
    field = ".".join(filter(None, (mistake.field, about["field"])))
    return replace(mistake, field=field, value=show_value(value), rule=about["rule"])


_WHOLE_NUMBER = "it must be a whole number"
_NUMBER = "it must be a number"
_TRUTH = "it must be true or false"
_LIST = "it must be a list"
_OBJECT = "it must be an object: fields and their values"

#: by pydantic's name for what is wrong
_RULES = {
    "missing": "it must be given",
    "int_type": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "int_parsing_size": "it must be a smaller whole number",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "it must be a finite number",
    "multiple_of": "it must be a multiple of {multiple_of}",
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "string_type": "it must be text",
    "string_sub_type": "it must be text",
    "string_unicode": "it must be text in UTF-8",
    "string_too_short": "it must have {min_length} characters or more",
    "string_too_long": "it must have {max_length} characters or fewer",
    "string_pattern_mismatch": "it must match the pattern {pattern}",
    "greater_than": "it must be above {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than": "it must be below {lt}",
    "less_than_equal": "it must be at most {le}",
    "too_short": "it must have {min_length} items or more",
    "too_long": "it must have {max_length} items or fewer",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "iterable_type": _LIST,
    "dict_type": _OBJECT,
    "mapping_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dataclass_type": _OBJECT,
    "enum": "it must be {expected}",
    "literal_error": "it must be {expected}",
    "invalid_key": "names of fields must be text",
    "none_required": "it must be null",
    "path_type": "it must be a path",
    "recursion_loop": "it must not contain itself",
    "json_invalid": "it must be JSON",
    "json_type": "it must be JSON",
}


def _write_rule(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in ("value_error", "assertion_error"):
        return re.sub("^(Value error|Assertion failed), ", "", message)
    if kind in _RULES:
        return _RULES[kind].format_map(context)
    # An error that no field of ours has today: in pydantic's words, made to read like the rest.
    said = re.sub(r"^[\w ]*\bshould\b", "it must", message)
    return said[:1].lower() + said[1:]


def _advise(kind: str, given: object, place: _Place) -> str:
    """Say how a value is written, where that is known."""
    rule = _RULES.get(kind)
    if rule in (_WHOLE_NUMBER, _NUMBER):
        return _write_number(given, is_whole=rule == _WHOLE_NUMBER)
    if rule == _TRUTH and isinstance(given, str):
        return "write true or false, without quotes"
    example = _example(place)
    return f"write it like this: {example}" if example else ""


#: up to here, every whole number is also exact in floating point
_LARGEST_SHOWN = 1 << 53


def _write_number(given: object, *, is_whole: bool) -> str:
    text = given.strip() if isinstance(given, str) else given
    try:
        number = float(text)  # type: ignore[arg-type]  # what is not a number is caught
    except (TypeError, ValueError, OverflowError):
        return ""
    is_writable = math.isfinite(number) and abs(number) < _LARGEST_SHOWN
    if isinstance(given, bool) or not is_writable or (is_whole and number != int(number)):
        return ""
    shown = f"{int(number)}" if is_whole else f"{number:g}"
    return f"write it without quotes: {shown}" if isinstance(given, str) else f"write {shown}"


def _add(place: _Place) -> str:
    example = _example(place)
    return f"add it, such as {example}" if example else f"add {place.name!r}"


def _example(place: _Place) -> str:
    """Return a field as it may be written; "" if the model has no example of it."""
    if place.info is None or not place.info.examples:
        return ""
    return " or ".join(
        f"{json.dumps(place.name)}: {json.dumps(one)}" for one in place.info.examples
    )
