"""Fixtures for all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from memgate_service.cli import main as cli
from tests.builders import Bench

# No deadline: a busy machine is no bug.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")

# What fails is logged as a plain traceback: a picture of it takes seconds.
structlog.configure(
    processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
)

DATA = Path(__file__).parent / "data"

#: where the full truth files are, beside a checkout; a stranger's clone has none
SHARED_TRUTH = Path(__file__).parents[2] / "shared" / "truth"


#: what starts programs of its own takes longest
_SLOWEST_FIRST = ("browser", "integration", "packaging", "contract", "bench")


#: beginnings of the ids of tests that ``make test`` leaves out
EXHAUSTIVE = [
    line
    for line in (Path(__file__).parent / "exhaustive.txt").read_text().splitlines()
    if not line.startswith("#")
]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is exhaustive, wherever it is defined."""
    if item.nodeid.startswith(tuple(EXHAUSTIVE)):
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process is left with it alone at the end."""
    root = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        kind = item.path.relative_to(root).parts[0]
        return _SLOWEST_FIRST.index(kind) if kind in _SLOWEST_FIRST else len(_SLOWEST_FIRST)

    items.sort(key=rank)


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Make allocators whose invariants are checked when the test is over."""
    benches: list[Bench] = []

    def make(conf: str = "", **options: Any) -> Bench:
        benches.append(Bench(conf, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.allocator.check_invariants()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """Make an allocator with default settings on an ample device."""
    return make_bench()


class Ran:
    """What a command did: exit status, standard output, standard error."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``memgate`` in this process."""
    monkeypatch.setenv("COLUMNS", "200")

    def run_memgate(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["memgate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capfd.readouterr()
        code = exited.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run_memgate
