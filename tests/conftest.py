"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.builders import Bench

# No deadline: a busy machine is no bug.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")

DATA = Path(__file__).parent / "data"

#: where the full truth files are, beside a checkout; a stranger's clone has none
SHARED_TRUTH = Path(__file__).parents[2] / "shared" / "truth"


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
