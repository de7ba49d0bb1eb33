"""Workspaces of convolutions, told by the real cuDNN, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Alloc, Category
from memgate.units import MIB
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.traced import TracedJob
from tests.cudnn_runtime import WITH_CUDNN

pytestmark = pytest.mark.skipif(
    not (WITH_CUDNN.is_installed and WITH_CUDNN.has_cudnn),
    reason="the real cuDNN is not there: python -m tests.cudnn_runtime",
)

RESNET: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 128,
    "optimizer": {"name": "Adam"},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[PhantomEngine]:
    """A warm engine for all tests of this file."""
    with PhantomEngine(WITH_CUDNN) as engine:
        yield engine


def _trace(engine: PhantomEngine, job: dict[str, Any], gpu: str = "a100-40") -> TracedJob:
    return engine.trace(parse_job_spec(job), find_gpu(gpu))


def _convolution_workspaces(traced: TracedJob) -> list[int]:
    """Sizes of what cuDNN was lent, in order."""
    return [
        event.size_bytes
        for event in traced.timeline.events
        if isinstance(event, Alloc) and event.block_id in traced.timeline.dispensable
    ]


def test_the_real_cudnn_tells_its_workspaces(engine: PhantomEngine) -> None:
    """In four iterations the same ones come four times: a plan is chosen once and kept."""
    traced = _trace(engine, RESNET)

    sizes = _convolution_workspaces(traced)
    assert len(sizes) % 4 == 0
    assert sizes == sizes[: len(sizes) // 4] * 4
    assert max(sizes) > MIB
    labels = traced.timeline.labels
    assert {labels[block].category for block in traced.timeline.dispensable} == {Category.WORKSPACE}


def test_the_gpu_decides_what_cudnn_chooses(engine: PhantomEngine) -> None:
    """Its heuristics know each compute capability."""
    sizes = [
        _convolution_workspaces(_trace(engine, RESNET, gpu)) for gpu in ("a100-40", "rtx-3060")
    ]
    assert sizes[0] != sizes[1]


def test_benchmarking_lends_cudnn_more(engine: PhantomEngine) -> None:
    """With ``cudnn_benchmark`` every plan is tried, those with large workspaces too."""
    usual, benchmarked = (
        _convolution_workspaces(_trace(engine, RESNET | {"cudnn_benchmark": on}))
        for on in (False, True)
    )
    assert max(benchmarked) > max(usual)


@pytest.mark.parametrize("gpu", ["t4", "h100-80"])
def test_every_gpu_finds_plans(engine: PhantomEngine, gpu: str) -> None:
    """The oldest and the newest that this torch runs on."""
    assert _trace(engine, RESNET, gpu).timeline.events
