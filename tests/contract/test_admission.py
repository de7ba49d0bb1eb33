"""The gates: one core and its doors, read in the order in which they import; no codes of errors."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import memgate.errors
from memgate.errors import MemgateError
from memgate_service.http.errors import CODE_OF_STATUS
from tests.contract.test_imports import ROOT

ROOM = ROOT / "service" / "memgate_service" / "admission"
PLUGINS = ROOT / "deploy" / "slurm"
PACKAGE = "memgate_service.admission"

#: which other doors a door may use; all use the core
DOORS: dict[str, set[str]] = {"kubernetes": set(), "kueue": {"kubernetes"}, "slurm": set()}


def _modules() -> list[str]:
    """Return the modules of the room, ``core.policy`` and so on."""
    paths = (path.relative_to(ROOM) for path in ROOM.rglob("*.py") if path.stem != "__init__")
    return sorted(".".join(path.with_suffix("").parts) for path in paths)


def _order() -> list[str]:
    """Return the modules in the reading order that the room itself states."""
    text = ast.get_docstring(ast.parse((ROOM / "__init__.py").read_text()))
    assert text is not None
    return re.findall(r"``((?:core|kubernetes|kueue|slurm)(?:\.\w+)+)``", text)


def _imports(module: str) -> list[str]:
    path = ROOM / Path(*module.split(".")).with_suffix(".py")
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]


def _imported_here(module: str) -> list[str]:
    inside = [name for name in _imports(module) if name.startswith(f"{PACKAGE}.")]
    return [name.removeprefix(f"{PACKAGE}.") for name in inside]


def test_the_reading_order_names_every_module_once() -> None:
    """Whoever adds a module says where it is read."""
    assert sorted(_order()) == _modules()


@pytest.mark.parametrize("module", _modules())
def test_the_reading_order_is_the_import_order(module: str) -> None:
    """No module imports a later one, so the room can be read from its first to its last."""
    order = _order()
    later = [name for name in _imported_here(module) if order.index(name) >= order.index(module)]
    assert later == []


@pytest.mark.parametrize("module", _modules())
def test_the_core_knows_no_door_and_a_door_no_other(module: str) -> None:
    """Kueue alone goes through the door to Kubernetes' API."""
    room = module.partition(".")[0]
    allowed = {"core", room} | DOORS.get(room, set())
    assert {name.partition(".")[0] for name in _imported_here(module)} <= allowed


@pytest.mark.parametrize("module", _modules())
def test_gates_are_below_the_service(module: str) -> None:
    """The HTTP service and the command line import the gates, never the other way round."""
    above = tuple(f"memgate_service.{room}" for room in ("http", "cli", "dashboard", "settings"))
    assert [name for name in _imports(module) if name.startswith(above)] == []


def _codes() -> set[str]:
    """Return the codes of everything that a server may answer with."""
    errors = (one for _, one in inspect.getmembers(memgate.errors, inspect.isclass))
    raised = {one.code for one in errors if issubclass(one, MemgateError)}
    return raised | set(CODE_OF_STATUS.values()) | {"CANCELED", "QUEUE_FULL", "WORKERS_LOST"}


def test_no_gate_decides_by_the_code_of_an_error() -> None:
    """Whose fault it is decides, in Python and in Lua: a new code changes nothing."""
    sources = [*ROOM.rglob("*.py"), *PLUGINS.rglob("*.lua")]
    assert len(sources) > 30
    for path in sources:
        words = set(re.findall(r"\b[A-Z][A-Z_]{4,}\b", path.read_text()))
        assert words & _codes() == set(), path
        assert ".code ==" not in path.read_text(), path
