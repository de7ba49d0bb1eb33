"""Estimators of others, asked like engines: their facts come from the job's own runtime."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memgate.errors import InputError
from memgate.estimators import ESTIMATORS
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.timeline import Category
from memgate.units import GIB, MIB
from memgate_service.cli.main import app
from memgate_worker.local import close_engines, estimate_spec
from memgate_worker.runtimes.runtime import find_runtime

RUNTIME = find_runtime("torch-2.14")
GPU = find_gpu("rtx-3060")
#: of ResNet-18, as torchvision says
WEIGHT_BYTES = 4 * 11_689_512

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

JOB: JobSpec = parse_job_spec(
    {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 64, 64]},
        "batch_size": 16,
        "optimizer": {"name": "Adam"},
        "iterations": 2,
    }
)


@pytest.fixture(autouse=True, scope="module")
def _engines() -> Iterator[None]:
    yield
    close_engines()


@pytest.mark.parametrize("engine", sorted({*ESTIMATORS, "tbem"} - {"llmem"}))
def test_an_estimator_is_asked_like_an_engine(engine: str) -> None:
    """With a verdict, a breakdown, and a note that says what it is."""
    said = estimate_spec(JOB, GpuTarget(gpu=GPU), engine=engine).estimate

    assert said.engine == engine
    assert [reason.code for reason in said.reasons][-1] == "COMPARISON_ONLY"
    assert sum(said.breakdown.values()) == said.peak_bytes


def test_facts_are_those_of_the_model() -> None:
    """Its weights once each, and what its forward pass makes, which grows with the batch."""
    sizes = {}
    for batch_size in (16, 32):
        job = JOB.model_copy(update={"batch_size": batch_size})
        timeline = estimate_spec(job, GpuTarget(gpu=GPU), engine="horus").timeline
        blocks = zip(timeline.labels, timeline.events, strict=True)
        sizes[batch_size] = {label.category: event.size_bytes for label, event in blocks}  # type: ignore[union-attr]

    assert sizes[16][Category.PARAMETERS] == WEIGHT_BYTES
    assert sizes[16][Category.GRADIENTS] == WEIGHT_BYTES
    grown = sizes[32][Category.ACTIVATIONS] / sizes[16][Category.ACTIVATIONS]
    assert grown == pytest.approx(2, abs=0.01)


def test_tests_at_small_batches_lie_on_the_phantoms_line() -> None:
    """Of a plain network its figure is near the phantom's own at the full size."""
    tested, run = (
        estimate_spec(JOB, GpuTarget(gpu=GPU), engine=engine).estimate.peak_reserved_bytes
        for engine in ("tbem", "phantom")
    )

    assert abs(tested - run) < 64 * MIB


def test_a_benchmark_scores_engines_on_a_table(tmp_path: Path) -> None:
    """A job that was measured as the phantom says is met exactly; the formula is not."""
    peak = estimate_spec(JOB, GpuTarget(gpu=GPU), engine="phantom").estimate.peak_allocated_bytes
    columns = ("source", "model", "method", "measured_gib", "measure_kind", "job")
    cells = ("a/b@c:d", "ResNet-18", "full", peak / GIB, "allocated", JOB.model_dump_json())
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, cells])
    engines = ("--engine", "phantom", "--engine", "rule-of-thumb", "--gpu", GPU.name)
    report = tmp_path / "report.md"

    ran = CliRunner().invoke(app, ["benchmark", str(tmp_path), *engines, "-o", str(report)])

    assert ran.exit_code == 0, ran.output
    assert "| a/b | phantom | 1 | 1 | 0.00 % | 0.00 % |" in report.read_text()
    assert "| full | rule-of-thumb | 1 | 1 |" in report.read_text()


def test_an_estimator_has_no_timeline_to_keep() -> None:
    """Its blocks are figures, and would pass for a recording."""
    answer = estimate_spec(JOB, GpuTarget(gpu=GPU), engine="rule-of-thumb")

    with pytest.raises(InputError, match="engine rule-of-thumb: it says how much memory"):
        answer.record(GPU)
