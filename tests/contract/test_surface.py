"""The public surface of ``memgate``: exactly these names, and light to import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import memgate
from tests.contract.test_imports import PACKAGES

SURFACE = [
    "AsyncClient",
    "Client",
    "Estimate",
    "JobSpec",
    "RecordedTimeline",
    "__version__",
    "estimate",
    "read_timeline",
    "report_when_done",
]


def _python(code: str) -> str:
    """Run code in a fresh interpreter; return what it prints."""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_the_surface_is_these_names() -> None:
    """One more or one less is a decision, and this is where it is written down."""
    assert memgate.__all__ == SURFACE
    assert set(dir(memgate)) >= set(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_each_name_is_what_its_module_defines(name: str) -> None:
    """Found when it is used, and then kept: the second look needs no import."""
    found = getattr(memgate, name)

    assert vars(memgate)[name] is found
    assert name == "__version__" or getattr(import_module(found.__module__), name) is found


def test_another_name_is_an_attribute_error() -> None:
    """So that ``hasattr`` and ``from memgate import`` work as for any module."""
    with pytest.raises(AttributeError, match="module 'memgate' has no attribute 'magic'"):
        memgate.magic  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'magic'"):
        from memgate import magic  # type: ignore[attr-defined]  # noqa: F401


def test_importing_memgate_loads_nothing_else() -> None:
    """No engine, no HTTP library, no torch; not even pydantic."""
    loaded = set(_python("import sys, memgate; print(*sys.modules)").split())
    before = set(_python("import sys; print(*sys.modules)").split())
    ours = {n for n in loaded - before if n.partition(".")[0] not in sys.stdlib_module_names}

    assert ours == {"memgate", "memgate.version"}


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("report_when_done", ["pydantic", "msgspec", "httpx2"]),
        ("JobSpec", ["httpx2", "memgate_worker"]),
        ("estimate", ["httpx2", "memgate_worker", "torch"]),
        ("Client", ["memgate_worker", "torch", "fastapi", "rq", "rich", "typer"]),
    ],
)
def test_a_name_loads_only_what_it_needs(name: str, absent: list[str]) -> None:
    """A training script that reports its outcome needs the standard library alone."""
    code = f"import sys; from memgate import {name}; print(*sys.modules)"

    assert not set(absent) & set(_python(code).split())


def test_a_missing_extra_is_an_import_error_with_the_command() -> None:
    """The operator's to install; programs may catch it as they catch any import that fails."""
    code = """
import sys
sys.modules["httpx2"] = None
try:
    from memgate import Client
except ImportError as error:
    print(type(error).__name__, error.fault, error)
"""
    want = "MissingExtraError operator memgate.Client needs httpx2: pip install 'memgate[client]'"
    assert _python(code) == want


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(package: str) -> None:
    """A type checker reads our annotations."""
    assert (PACKAGES[package] / package / "py.typed").is_file()
    assert Path(import_module(package).__file__ or "").parent == PACKAGES[package] / package
