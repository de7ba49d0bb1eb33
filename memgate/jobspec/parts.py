"""What every part of a job spec is made of: strict numbers, bounded settings, closed objects."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import AllocatorConfigError, UnsupportedAllocatorError
from memgate.mistakes import Mistake, RuleError

#: far above what people train with, far below what would keep a worker busy forever or overflow
MAX_SIZE = 1 << 20
MAX_ACCUMULATION_STEPS = 1024
MAX_DIMENSIONS = 8
MAX_TENSORS = 32

#: of ``config`` and ``kwargs``: the length of their JSON, and the largest whole number in them. A
#: published configuration may name a thousand classes, twice
MAX_SETTINGS_LENGTH = 128 * 1024
MAX_SETTINGS_NUMBER = 1 << 31

# Numbers and booleans must be just that, in JSON and YAML alike: "32" is not 32, nor is true 1.
Size = Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)]
Truth = Annotated[bool, Field(strict=True)]


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        length = len(json.dumps(settings, default=str))
        _check_numbers(settings)
    except RecursionError:
        raise RuleError("it is nested too deeply") from None
    if length > MAX_SETTINGS_LENGTH:
        raise RuleError(
            f"it may have {MAX_SETTINGS_LENGTH:,} characters as JSON, and has {length:,}"
        )
    return settings


def _check_numbers(value: Any) -> None:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int | float) and abs(value) > MAX_SETTINGS_NUMBER:
        raise RuleError(f"it holds {value}, and no number in it may exceed {MAX_SETTINGS_NUMBER:,}")


#: what is passed on to a constructor
Settings = Annotated[dict[str, Any], AfterValidator(_check_settings)]


def _check_allocator(text: str) -> str:
    try:
        parse_alloc_conf(text)
    except AllocatorConfigError as error:
        (mistake,) = error.mistakes or (Mistake(field="", value="", rule=error.message),)
        raise RuleError(mistake.rule, mistake.next_step, mistake.near) from None
    except UnsupportedAllocatorError:
        pass  # the text is right; check_supported says that we cannot do it
    return text


#: a ``PYTORCH_ALLOC_CONF`` string
AllocatorText = Annotated[
    str, Field(examples=["expandable_segments:True"]), AfterValidator(_check_allocator)
]


class Part(BaseModel):
    """Unknown fields are errors; a spec does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
