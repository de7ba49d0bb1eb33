"""Which engine answers when nobody says which."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError, NotModelledError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Timeline
from memgate_worker.engines import registry
from memgate_worker.engines.registry import start_engine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import read_runtimes

RUNTIME = read_runtimes()["torch-2.14"]
SPEC = parse_job_spec(
    {
        "model": {"source": "torchvision", "name": "vgg16"},
        "input": {"shape": [3, 8, 8]},
        "batch_size": 1,
    }
)


class _Engine:
    """Answers, or raises; counts how often it was started and ended."""

    def __init__(self, name: str, problem: Exception | None = None) -> None:
        self.name = name
        self.problem = problem
        self.num_started = self.num_ended = 0

    def __call__(self, *_: Any) -> _Engine:
        self.num_started += 1
        return self

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.num_ended += 1

    def trace(self, *_: Any, **__: Any) -> TracedJob:
        if self.problem is not None:
            raise self.problem
        return TracedJob(
            timeline=Timeline(events=()),
            engine=self.name,
            runtime="",
            versions={},
            alloc_conf="",
            num_parameters=0,
            notes=(),
            seconds=0.0,
        )


def _trace(
    monkeypatch: pytest.MonkeyPatch, phantom: _Engine, profile: _Engine, *, times: int = 1
) -> TracedJob:
    monkeypatch.setattr(registry, "PhantomEngine", phantom)
    monkeypatch.setattr(registry, "ProfileEngine", profile)
    with start_engine("auto", RUNTIME) as engine:
        return [engine.trace(SPEC, find_gpu("t4")) for _ in range(times)][-1]


def test_the_phantom_answers_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other engine is not even started."""
    phantom, profile = _Engine("phantom"), _Engine("profile")

    traced = _trace(monkeypatch, phantom, profile)

    assert (traced.engine, traced.doubts) == ("phantom", ())
    assert (phantom.num_ended, profile.num_started) == (1, 0)


def test_the_profile_engine_answers_what_the_phantom_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is started once, ended, and the answer says why it is not the phantom's."""
    phantom = _Engine("phantom", NotModelledError("it calls cufftExecC2C"))
    profile = _Engine("profile")

    traced = _trace(monkeypatch, phantom, profile, times=2)

    assert traced.engine == "profile"
    (doubt,) = traced.doubts
    assert doubt.code == "PROFILE_INSTEAD"
    assert doubt.message.startswith("it calls cufftExecC2C; the profile engine answers instead")
    assert (profile.num_started, profile.num_ended, phantom.num_ended) == (1, 1, 1)


def test_a_job_that_is_wrong_is_wrong_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again."""
    profile = _Engine("profile")

    with pytest.raises(InputError, match="no such model"):
        _trace(monkeypatch, _Engine("phantom", InputError("no such model")), profile)

    assert profile.num_started == 0
