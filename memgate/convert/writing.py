"""A job spec -> YAML that a person reads on: with what was assumed, and what is missing, in it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from memgate.convert.conversion import Conversion

#: the file that ``memgate schema`` is written to; editors look for it beside the spec
SCHEMA_LINE = "# yaml-language-server: $schema=job.schema.json"

_WIDTH = 96


def write_spec(spec: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Write a spec, with comments above it, each a paragraph."""
    plain = json.loads(json.dumps(spec))  # enums are their values
    lines = [SCHEMA_LINE]
    for comment in comments:
        text = "".join(char if char.isprintable() else " " for char in comment)
        lines += textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")
    body = yaml.safe_dump(
        plain, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
    )
    return "\n".join([*lines, body])


def describe_conversion(conversion: Conversion) -> list[str]:
    """Say what was assumed, and what the spec does not say and can matter: a sentence for each."""
    assumed = [
        f"{'not certain' if one.can_matter else 'assumed'}: {one.field}: {one.why}"
        for one in conversion.assumptions
    ]
    return [*assumed, *(f"not in this spec: {field.sentence}" for field in conversion.unused)]
