"""The fields of a job spec as tables for docs/job-spec.md; ``python -m tests.spec_page`` writes.

It writes the JSON Schema that deploy/examples name, too. A contract test fails where either is not
fresh.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memgate.jobspec import JobSpec
from memgate_service.cli.commands.schema import write_schema

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "job-spec.md"
SCHEMA = _ROOT / "deploy" / "examples" / "job.schema.json"

#: what is below is generated
START = "## All fields\n"

_HEAD = """
Written by `python -m tests.spec_page` from `memgate/jobspec/`; `memgate schema` prints the same
for editors.
"""

_ROWS = """
| field | takes | unless given | |
|---|---|---|---|
"""


def write_page(page: str) -> str:
    """Return the page with fresh tables."""
    schema = JobSpec.model_json_schema()
    parts = {"JobSpec": schema} | {
        name: part for name, part in schema["$defs"].items() if "properties" in part
    }
    tables = "".join(_table(name, part, schema["$defs"]) for name, part in parts.items())
    return f"{page.partition(START)[0]}{START}{_HEAD}{tables}"


def _table(name: str, part: dict[str, Any], defs: dict[str, Any]) -> str:
    about = part.get("description", "").partition("\n")[0]
    required = part.get("required", [])
    rows = "\n".join(
        f"| `{field}` | {_type(one, defs)} | {_default(field, one, required)} |"
        f" {_words(one.get('description', ''))} |"
        for field, one in part["properties"].items()
    )
    return f"\n### {name}\n\n{about}\n{_ROWS}{rows}\n"


def _words(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _type(one: dict[str, Any], defs: dict[str, Any]) -> str:
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return _type(defs[name], defs) if "enum" in defs[name] else f"[{name}](#{name.lower()})"
    if given := one.get("anyOf", one.get("oneOf")):
        kinds = (_type(kind, defs) for kind in given if kind.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    if "const" in one:
        return f"`{one['const']}`"
    if one.get("type") == "array":
        return f"list of {_type(one['items'], defs)}" if "items" in one else "list"
    return str(one.get("type", "any"))


def _default(field: str, one: dict[str, Any], required: list[str]) -> str:
    if field in required:
        return "required"
    value = one.get("default")
    return "" if value in (None, "", {}) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text()))
    SCHEMA.write_text(write_schema())
