"""Engines of a process that stay warm, as long as their runtime stays what it was."""

from __future__ import annotations

from typing import Any

import pytest

from memgate_worker.engines import warm
from memgate_worker.engines.identity import identify_engine
from memgate_worker.runtimes.runtime import read_runtimes

RUNTIME = read_runtimes()["torch-2.14"]


class _Engine:
    """Counts how often it was ended."""

    def __init__(self) -> None:
        self.num_ended = 0

    def __exit__(self, *_: object) -> None:
        self.num_ended += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[_Engine]:
    """Start engines that do nothing, and no others."""
    engines: list[_Engine] = []

    def start(*_: Any) -> _Engine:
        engines.append(_Engine())
        return engines[-1]

    monkeypatch.setattr(warm, "_engines", warm._WarmEngines())
    monkeypatch.setattr(warm, "start_engine", start)
    return engines


def test_an_engine_is_started_once(started: list[_Engine]) -> None:
    """The second question finds it warm."""
    for _ in range(2):
        with warm.use_engine("phantom", RUNTIME):
            pass

    assert [engine.num_ended for engine in started] == [0]


def test_an_engine_is_started_again_when_its_runtime_has_changed(
    started: list[_Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was installed since is what the next job runs with."""
    with warm.use_engine("phantom", RUNTIME):
        pass
    other = identify_engine()
    monkeypatch.setattr(warm, "identify_engine", lambda _: other)
    with warm.use_engine("phantom", RUNTIME) as engine:
        used: object = engine

    assert used is started[1]
    assert [engine.num_ended for engine in started] == [1, 0]
