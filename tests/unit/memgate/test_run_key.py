"""One identity of a run: what makes two runs the same, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memgate.gpus import CATALOGUE, GpuSpec, find_gpu
from memgate.jobspec import parse_job_spec
from memgate.run_key import EngineIdentity, GpuTraits, RunKey, RuntimeIdentity

SPEC: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "vgg16"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 8,
}
RUNTIME = RuntimeIdentity(name="torch-2.14", versions=(("torch", "2.14.1"),), stubs="a1")
MADE_BY = EngineIdentity(version="0.2.0", revision=1, runtime=RUNTIME)


def _key(
    *,
    gpu: GpuSpec | None = CATALOGUE["rtx-3060"],
    engine: str = "phantom",
    made_by: EngineIdentity = MADE_BY,
    **fields: Any,
) -> str:
    return RunKey.of(parse_job_spec(SPEC | fields), gpu, engine=engine, made_by=made_by).digest()


@pytest.mark.parametrize(
    "other",
    [
        {"allocator": "expandable_segments:True"},
        {"runtime": "torch-2.6"},
        {"gpu": replace(CATALOGUE["rtx-3060"], memory_bytes=1 << 40)},
        {"gpu": replace(CATALOGUE["rtx-3060"], name="other", product="other")},
    ],
    ids=["allocator", "name of the runtime", "memory", "name of the GPU"],
)
def test_a_replay_answers_for_what_is_not_in_the_key(other: dict[str, Any]) -> None:
    """Capacity and allocator settings change no event; which runtime it is, its identity says."""
    assert _key(**other) == _key()


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 9},
        {"iterations": 3},
        {"gpu": replace(CATALOGUE["rtx-3060"], compute_capability=(8, 9))},
        {"gpu": replace(CATALOGUE["rtx-3060"], multiprocessors=30)},
        {"gpu": None},
        {"engine": "profile"},
        {"made_by": replace(MADE_BY, version="0.3.0")},
        {"made_by": replace(MADE_BY, revision=2)},
        {"made_by": replace(MADE_BY, layout=MADE_BY.layout + 1)},
        {"made_by": replace(MADE_BY, runtime=replace(RUNTIME, name="torch-2.6"))},
        {"made_by": replace(MADE_BY, runtime=replace(RUNTIME, versions=(("torch", "2.14.2"),)))},
        {"made_by": replace(MADE_BY, runtime=replace(RUNTIME, cudnn="cudnn==9.24"))},
        {"made_by": replace(MADE_BY, runtime=replace(RUNTIME, stubs="b2"))},
    ],
    ids=[
        *("batch size", "iterations", "compute capability", "multiprocessors", "no GPU", "engine"),
        *("version of memgate", "revision", "layout"),
        *("runtime", "version of torch", "cuDNN", "stand-ins"),
    ],
)
def test_whatever_may_change_an_event_is_in_the_key(other: dict[str, Any]) -> None:
    """The job, the GPU's traits, and exactly what ran it."""
    assert _key(**other) != _key()


def test_memory_counts_where_cudnn_tries_plans() -> None:
    """With cudnn_benchmark, workspaces are tried as far as there is memory."""
    larger = replace(CATALOGUE["rtx-3060"], memory_bytes=1 << 40)

    assert _key(cudnn_benchmark=True, gpu=larger) != _key(cudnn_benchmark=True)


def test_memory_never_counts_for_the_profile_engine() -> None:
    """It runs on the CPU; multiprocessors decide how column sums are made."""
    larger = replace(CATALOGUE["rtx-3060"], memory_bytes=1 << 40)
    wider = replace(CATALOGUE["rtx-3060"], multiprocessors=99)

    usual = _key(engine="profile", cudnn_benchmark=True)
    assert _key(engine="profile", cudnn_benchmark=True, gpu=larger) == usual
    assert _key(engine="profile", cudnn_benchmark=True, gpu=wider) != usual


def test_an_identity_is_named_by_its_digest() -> None:
    """Equal ones share it; others do not."""
    assert MADE_BY.digest() == replace(MADE_BY).digest()
    assert MADE_BY.digest() != replace(MADE_BY, revision=2).digest()


def test_how_many_runs_the_catalogue_takes() -> None:
    """What docs/caches.md says about the cost of ``fit``."""
    job = parse_job_spec(SPEC)

    def num_runs(engine: str) -> int:
        return len({GpuTraits.of(gpu, job, engine) for gpu in CATALOGUE.values()})

    assert (len(CATALOGUE), num_runs("phantom"), num_runs("profile")) == (93, 57, 57)
    assert GpuTraits.of(find_gpu("a100-40"), job, "phantom") == GpuTraits.of(
        find_gpu("a100-80"), job, "phantom"
    )
