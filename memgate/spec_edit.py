"""The text of a job spec, a field and its new value -> the text with that field changed.

The rest of the text stays as a person wrote it, comments included, where each field begins a line
of its own. Otherwise, as in JSON, the whole is written anew.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from memgate.spec_text import PlainLoader, SpecTextError, read_text

_WIDTH = 1000


def set_field(text: str, field: str, value: Any) -> str:
    """Set a field at the top of a document; None takes it out.

    Raises:
        SpecTextError: if the text cannot be read, or is not an object with named fields.
    """
    document = read_text(text) if text.strip() else {}
    if not isinstance(document, dict):
        raise SpecTextError("a job spec is an object with named fields")
    wanted = {name: one for name, one in document.items() if name != field}
    if value is not None:
        wanted = document | {field: value}
    edited = _replace_lines(text, field, value)
    try:
        is_right = read_text(edited) == wanted
    except SpecTextError:
        is_right = False
    if is_right:
        return edited
    return json.dumps(wanted, indent=2) if text.lstrip().startswith("{") else _dump(wanted)


def _replace_lines(text: str, field: str, value: Any) -> str:
    lines = text.splitlines()
    start, end = _find_lines(text, field) or (len(lines), len(lines))
    written = [] if value is None else _dump({field: value}).splitlines()
    return "".join(f"{line}\n" for line in [*lines[:start], *written, *lines[end:]])


def _find_lines(text: str, field: str) -> tuple[int, int] | None:
    """Return the lines of a field, without blank lines and comments that follow it."""
    try:
        whole = yaml.compose(text, PlainLoader) if text.strip() else None
    except yaml.YAMLError:  # JSON that is not YAML
        return None
    pairs = whole.value if isinstance(whole, yaml.MappingNode) else []
    found = [(key, value) for key, value in pairs if key.value == field]
    if not found:
        return None
    key, value = found[0]
    start, mark = key.start_mark.line, value.end_mark
    lines = text.splitlines()
    end = max(start + 1, mark.line + (1 if mark.column else 0))
    while end > start + 1 and _is_blank(lines[min(end, len(lines)) - 1]):
        end -= 1
    return start, end


def _is_blank(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def _dump(document: dict[str, Any]) -> str:
    """Write each field in a line of its own."""
    lines = (
        yaml.safe_dump(
            {name: value}, sort_keys=False, default_flow_style=True, width=_WIDTH
        ).strip()
        for name, value in document.items()
    )
    return "".join(f"{line[1:-1]}\n" for line in lines)
