"""The figures of an estimator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memgate.accuracy import (
    CappedFigures,
    MeasuredRun,
    Prediction,
    gpu_of,
    predict,
    published_prediction,
    read_measured_runs,
    summarize,
)
from memgate.decision import Decision
from memgate.errors import InputError
from memgate.evaluation.verdicts import VerdictCounts
from memgate.gpus import find_gpu
from memgate.jobspec import ZeroGrad
from memgate.timeline import Alloc, Timeline
from memgate.units import GIB, MIB

MODELS: dict[str, Any] = {
    "VGG16": {"source": "torchvision", "name": "vgg16"},
    "gpt2": {"source": "transformers", "class": "GPT2LMHeadModel", "config": {}},
}


def _row(**fields: str) -> dict[str, str]:
    return {
        "run": "r1",
        "model": "VGG16",
        "optimizer": "Adam",
        "batch_size": "8",
        "zero_grad_mode": "0",
        "gpu": "A",
        "total_gpu_memory": "1000",
        "ground_bytes": "100",
        "real_oom": "false",
    } | fields


def _runs(*rows: dict[str, str], capped: list[dict[str, str]] | None = None) -> list[MeasuredRun]:
    return read_measured_runs(rows, capped or [], MODELS)


def _says(size: float, *, runs_out: bool = False, capped: tuple[bool, ...] = ()) -> Prediction:
    return Prediction(bytes=size, runs_out=runs_out, seconds=1.0, capped=capped)


def test_a_row_becomes_the_job_it_was() -> None:
    """Images for a CNN, tokens for a language model, the mode as it was."""
    cnn, language = _runs(_row(), _row(model="gpt2", zero_grad_mode="null"))

    assert cnn.spec.input.shape == (3, 86, 86)
    assert cnn.spec.zero_grad is ZeroGrad.ITERATION_START
    assert language.spec.input.sequence_length == 128
    assert language.spec.zero_grad is ZeroGrad.AFTER_STEP


def test_errors_are_relative_to_what_was_measured() -> None:
    """Median, p90 and outliers over the rows that did not run out of memory."""
    runs = _runs(*[_row(run=f"r{number}") for number in range(3)], _row(run="x", real_oom="true"))
    said = [_says(101), _says(98), _says(150), _says(900, runs_out=True)]

    summary = summarize(runs, said, is_published=False)
    figures = summary.figures

    assert figures.rows == 3
    assert figures.median_relative_error == pytest.approx(0.02)
    assert figures.share_beyond_10_percent == pytest.approx(1 / 3)
    assert figures.first_validation_right == 1.0
    assert figures.seconds_median == 1.0
    assert summary.by_gpu["A"].rows == 3


def test_capped_runs_count_right_and_wrong_both_ways() -> None:
    """A job that was let in and died is worse than one kept out: they are told apart."""
    capped = [
        {"run": "r1", "allocator_cap_bytes": "50.0", "oom_2nd": died}
        for died in ("true", "true", "false", "false")
    ]
    runs = _runs(_row(), capped=capped)

    figures = summarize(
        runs, [_says(100, capped=(True, False, False, True))], is_published=False
    ).figures

    assert figures.capped == CappedFigures(rows=4, right=2, false_admits=1, false_rejects=1)


@pytest.mark.parametrize(("num_deaths", "want"), [(99, 0.5), (98, None), (0, None)])
def test_a_margin_is_what_99_of_100_deaths_stay_below(num_deaths: int, want: float | None) -> None:
    """Too few deaths say nothing about one in a hundred; a job that lived says nothing at all."""
    deaths = [{"run": "r1", "allocator_cap_bytes": "90", "oom_2nd": "true"}] * num_deaths
    deaths[:1] = [{"run": "r1", "allocator_cap_bytes": "150", "oom_2nd": "true"}] * min(
        1, num_deaths
    )
    lived = {"run": "r1", "allocator_cap_bytes": "900", "oom_2nd": "false"}
    runs = _runs(_row(), capped=[*deaths, lived])
    said = replace(_says(100), required_bytes=100)

    assert summarize(runs, [said], is_published=False).figures.margin_99 == want


def test_a_published_estimate_is_tried_at_itself() -> None:
    """A job that died in what an estimator said was enough is its false admit."""
    row = _row(xmem_bytes="90", xmem_oom="false", xmem_2nd_oom="true", xmem_runtime_s="21.5")
    (run,) = _runs(row)

    said = published_prediction(run, "xmem")
    figures = summarize([run], [said], is_published=True).figures

    assert said.seconds == 21.5
    assert figures.capped == CappedFigures(rows=1, right=0, false_admits=1, false_rejects=0)


def test_the_products_verdicts_are_counted_with_what_happened() -> None:
    """At the card's own size, and under each cap."""
    capped = [
        {"run": "r1", "allocator_cap_bytes": "50", "oom_2nd": died} for died in ("true", "false")
    ]
    runs = _runs(_row(), _row(run="x", real_oom="true"), capped=capped)
    said = replace(
        _says(100),
        decision=Decision.ADMIT,
        capped_decisions=(Decision.REJECT, Decision.UNCERTAIN),
    )

    figures = summarize(
        runs, [said, replace(_says(100), decision=Decision.REJECT)], is_published=False
    ).figures

    assert figures.verdicts == VerdictCounts(admit_lived=1, reject_died=1)
    assert figures.capped_verdicts == VerdictCounts(reject_died=1, uncertain_lived=1)


def test_a_published_estimator_decides_by_what_it_says() -> None:
    """It never doubts, and admits at its own estimate."""
    (run,) = _runs(_row(xmem_bytes="90", xmem_oom="false", xmem_2nd_oom="true"))

    figures = summarize([run], [published_prediction(run, "xmem")], is_published=True).figures

    assert figures.verdicts == VerdictCounts(admit_lived=1)
    assert figures.capped_verdicts == VerdictCounts(admit_died=1)


def test_an_unsupported_job_counts_nowhere() -> None:
    """-1, or nothing, is no prediction."""
    (run,) = _runs(_row(llmem_bytes="-1", llmem_oom="true"))

    figures = summarize(
        [run],
        [published_prediction(run, "llmem")],
        is_published=True,
    ).figures

    assert figures.rows == 0
    assert figures.median_relative_error is None
    assert figures.first_validation_right is None


@pytest.mark.parametrize("missing", ["ground_bytes", "model"])
def test_a_truth_that_lacks_a_column_is_refused(missing: str) -> None:
    """The column is named."""
    row = _row()
    del row[missing]

    with pytest.raises(InputError, match=f"the measured runs lack '{missing}'"):
        _runs(row)


def test_a_model_that_nobody_describes_is_refused() -> None:
    """The name is in the message."""
    with pytest.raises(InputError, match="the measured runs lack 'VGG99'"):
        _runs(_row(model="VGG99"))


def test_a_timeline_tells_of_a_row_its_peak_and_its_deaths() -> None:
    """The libraries' own memory is part of what a card shows, not of what a cap leaves."""
    capped = [
        {"run": "r1", "allocator_cap_bytes": str(cap), "oom_2nd": "true"}
        for cap in (50 * MIB, 200 * MIB)
    ]
    (run,) = _runs(_row(total_gpu_memory=str(12 * GIB)), capped=capped)
    timeline = Timeline(events=(Alloc(0, 100 * MIB),), labels=())
    gpu = find_gpu("rtx-3060")

    said = predict(run, timeline, gpu, 0.5)

    assert said.bytes == 100 * MIB + gpu.library_bytes
    assert said.runs_out is False
    assert said.capped == (True, False)


@pytest.mark.parametrize(
    ("product", "total_bytes", "name"),
    [
        (find_gpu("rtx-3060").product, 1, "rtx-3060"),
        ("NVIDIA A100 of another kind", 81 * GIB, "a100-80"),
    ],
)
def test_a_rows_gpu_is_found_by_product_then_by_family(
    product: str, total_bytes: int, name: str
) -> None:
    """Files name cards in many ways."""
    (run,) = _runs(_row(gpu=product, total_gpu_memory=str(total_bytes)))

    assert gpu_of(run).name == name


def test_a_gpu_of_no_family_is_refused() -> None:
    """Nothing near enough may stand in for it."""
    (run,) = _runs(_row(gpu="Voodoo 2"))

    with pytest.raises(InputError, match="r1: GPU 'Voodoo 2'"):
        gpu_of(run)
