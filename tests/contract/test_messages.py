"""No message names what only a checkout has: people install a wheel, or run an image."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memgate.errors import MissingExtraError
from memgate_service.cli.lazy import COMMANDS
from memgate_service.cli.main import app
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "memgate", ROOT / "service/memgate_service", ROOT / "worker/memgate_worker"]

_TARGETS = re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
assert len(_TARGETS) > 30

#: a target of the Makefile, or a file of the repository that no package has
ONLY_IN_A_CHECKOUT = re.compile(
    rf"\bmake (?:{'|'.join(_TARGETS)})\b"
    r"|(?<![\w/.])(?:deploy|docs|tests|service|worker)/\w[\w/.-]*"
    r"|\b(?:README|CONTRIBUTING|CHANGELOG)\.md\b"
)


def _messages(path: Path) -> Iterator[str]:
    """Yield the strings of a module that are not docstrings; those are for its readers."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def test_no_message_names_what_a_wheel_lacks() -> None:
    """Neither a target of ``make`` nor a file of the repository."""
    found = {
        (str(path.relative_to(ROOT)), named)
        for package in PACKAGES
        for path in package.rglob("*.py")
        for message in _messages(path)
        for named in ONLY_IN_A_CHECKOUT.findall(message)
    }
    assert found == set()


@pytest.mark.parametrize("pattern", ["dashboard/templates/**/*.html", "dashboard/static/*.js"])
def test_no_page_names_what_a_wheel_lacks(pattern: str) -> None:
    """The same, of the dashboard."""
    pages = list((ROOT / "service/memgate_service").glob(pattern))
    assert len(pages) > 5
    for page in pages:
        assert not ONLY_IN_A_CHECKOUT.search(page.read_text()), page.name


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_names_what_a_wheel_lacks(name: str) -> None:
    """Help is made of docstrings."""
    said = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300"})
    if isinstance(said.exception, MissingExtraError):
        pytest.skip(said.exception.message)
    assert said.exit_code == 0
    assert not ONLY_IN_A_CHECKOUT.search(said.output)


def test_the_api_names_nothing_that_a_wheel_lacks() -> None:
    """Its descriptions are docstrings, too."""
    document = json.dumps(create_app(ServiceSettings()).openapi())
    assert not ONLY_IN_A_CHECKOUT.search(document)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("build it with: make runtime RUNTIME=x", True),
        ("see docs/operations.md", True),
        ("deploy/examples/resnet50.json", True),
        ("its API is described at http://x/docs", False),
        ("the page /docs/errors lists all", False),
        ("make one with: memgate keys create", False),
    ],
)
def test_what_is_looked_for_is_found(text: str, is_found: bool) -> None:
    """And nothing else."""
    assert bool(ONLY_IN_A_CHECKOUT.search(text)) is is_found
