"""A pydantic model, a document -> the model's value, or one sentence that names what is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from memgate.errors import InputError
from memgate.units import clip

_Model = TypeVar("_Model", bound=BaseModel)


def validate(model: type[_Model], document: object, *, what: str) -> _Model:
    """Check a document that was read from JSON or YAML.

    Raises:
        InputError: naming each wrong field, its value and the rule.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(_describe(problem) for problem in error.errors())
        raise InputError(f"{what}: {problems}") from None


def _describe(problem: Any) -> str:
    field = ".".join(map(str, problem["loc"])) or "the whole"
    rule = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{field} is missing"
    if problem["type"] == "extra_forbidden":
        return f"{field} is no known field"
    shown = clip(problem["input"], limit=60)
    if problem["type"] == "model_type":
        shown = "empty" if problem["input"] is None else shown
        rule = "write an object: fields and their values"
    return f"{field} is {shown}: {rule}"
