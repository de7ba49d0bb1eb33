"""docs/security.md names a test for everything that is stopped, and each of them is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
_PAGE = (ROOT / "docs" / "security.md").read_text()
_NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", _PAGE)))


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(("path", "name"), _NAMED, ids=lambda part: part)
def test_what_is_said_to_be_stopped_has_a_test(path: str, name: str) -> None:
    """One that was renamed takes its mention along; one that was removed was a promise."""
    assert name.startswith("test_")
    assert name in _functions(path), f"docs/security.md names {path}::{name}, which is gone"


def test_every_attack_names_a_test() -> None:
    """A row without one would be a claim."""
    rows = [
        line for line in _PAGE.splitlines() if re.match(r"\| [^|]+ \| [^|]+ \| [^|]+ \|$", line)
    ]
    attacks = [row for row in rows if not row.startswith("| tries to")]
    assert len(attacks) > 25
    assert [row for row in attacks if "::" not in row] == []


def test_what_images_begin_with_can_be_given_by_digest() -> None:
    """Every base of the Dockerfile, and every image of the compose file that we do not build."""
    bases = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (ROOT / "Dockerfile").read_text(), re.M)
    stages = {stage for _, stage in bases}
    foreign = {base for base, _ in bases if base not in stages}
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    images = [service["image"] for service in services if "image" in service]

    assert foreign == {"${PYTHON_IMAGE}"}
    assert images
    assert all(re.fullmatch(r"\$\{MEMGATE_\w+_IMAGE:-\S+\}", image) for image in images)
