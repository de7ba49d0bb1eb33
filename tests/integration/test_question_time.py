"""The time for a question is for all of its runs together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memgate.contract import Work, WorkKind
from memgate.errors import JobFailedError, TimeLimitError
from memgate.jobspec import parse_job_spec
from memgate_worker import answers
from memgate_worker.answers import EngineAnswerer
from memgate_worker.limits import RunLimits
from tests.integration.queue_place import Place

JOB = parse_job_spec(
    {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 32, 32]},
        "batch_size": 4,
    }
)


class _Engine:
    """Takes some time for each run, as a clock of the test's shows, and finds nothing."""

    def __init__(self, clock: SimpleNamespace, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.limits: list[float] = []

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was started."""

    def trace(self, job: object, gpu: object, *, limits: RunLimits) -> Any:
        """Note what was allowed, and take it or less."""
        self.limits.append(limits.seconds)
        self._clock.now += min(self._seconds, limits.seconds)
        if self._seconds > limits.seconds:
            raise TimeLimitError(f"the run took longer than {limits.seconds:g} s")
        raise JobFailedError("not on this GPU")


def _ask(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: WorkKind, seconds: float
) -> tuple[_Engine, TimeLimitError]:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    engine = _Engine(clock, seconds)
    monkeypatch.setattr(answers, "time", clock)
    monkeypatch.setattr(answers, "start_engine", lambda *_: engine)
    settings = place.settings.model_copy(update={"job_timeout_seconds": 100.0})
    with EngineAnswerer(place.store, settings) as answerer, pytest.raises(TimeLimitError) as raised:
        answerer.answer(Work(kind=kind, job=JOB))
    return engine, raised.value


def test_each_run_gets_what_the_others_have_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN runs of 40 s and 100 s for a question THEN the third is ended, and that is ours."""
    engine, error = _ask(place, monkeypatch, WorkKind.FIT, 40.0)

    assert engine.limits == [100.0, 60.0, 20.0]
    assert "the runs for this question took longer than 100 s together" in error.message


def test_one_run_that_takes_all_of_it_is_told_as_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other run is to blame."""
    engine, error = _ask(place, monkeypatch, WorkKind.FIT, 400.0)

    assert engine.limits == [100.0]
    assert error.message == "the run took longer than 100 s"
