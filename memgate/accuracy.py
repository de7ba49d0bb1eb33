"""Predictions and measurements -> how good an estimator is, in the figures that papers use.

Rows come from a file of measured runs (``peaks.csv``): what a GPU showed, and what published
estimators predicted for that very run. Rows that ran out of memory say nothing about the peak and
count in the validations only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Any

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.decision import Decision
from memgate.errors import InputError
from memgate.evaluation.verdicts import VerdictCounts, count_verdicts
from memgate.gpus import CATALOGUE, GpuSpec
from memgate.jobspec import JobSpec, ZeroGrad, parse_job_spec
from memgate.timeline import Timeline
from memgate.verdict import USUAL_CONTEXT_BYTES

#: estimators whose predictions are in the file
PUBLISHED = ("xmem", "dnnmem", "schedtune", "llmem")

_ZERO_GRAD = {
    "0": ZeroGrad.ITERATION_START,
    "1": ZeroGrad.BEFORE_BACKWARD,
    "2": ZeroGrad.AFTER_STEP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedRun:
    """The same job again, its allocator limited: did it die?"""

    cap_bytes: int
    died: bool
    #: what was measured, if it lived
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A measured run."""

    run: str
    model: str
    gpu: str
    zero_grad_mode: str
    total_bytes: int
    measured_bytes: int
    ran_out: bool
    spec: JobSpec
    capped: tuple[CappedRun, ...]
    #: the columns of published estimators
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What an estimator says about a row."""

    bytes: float | None
    runs_out: bool | None
    seconds: float | None
    #: for each capped run: does it die?
    capped: tuple[bool, ...]
    #: the smallest cap in which it lives
    required_bytes: int | None = None
    #: the product's verdict at the card's own size; None: it was not asked
    decision: Decision | None = None
    #: and for each capped run
    capped_decisions: tuple[Decision, ...] = ()
    #: whether the job died in its own estimate, where that was tried
    second_died: bool | None = None


def read_measured_runs(
    peaks: Sequence[Mapping[str, str]],
    capped: Sequence[Mapping[str, str]],
    models: Mapping[str, Any],
) -> list[MeasuredRun]:
    """Turn rows of the files into runs with their job specs.

    Raises:
        InputError: if a column or a model is missing.
    """
    by_run: dict[str, list[CappedRun]] = {}
    try:
        for row in capped:
            peak = _number(row.get("peak2_preferred"))
            cap = CappedRun(
                cap_bytes=int(float(row["allocator_cap_bytes"])),
                died=row["oom_2nd"] == "true",
                peak_bytes=None if peak is None else int(peak),
            )
            by_run.setdefault(row["run"], []).append(cap)
        return [_measured_run(row, by_run.get(row["run"], []), models) for row in peaks]
    except KeyError as error:
        raise InputError(
            f"the measured runs lack {error}: each needs the columns of the published ones, and its"
            " model a description in models.json next to them"
        ) from None


def _measured_run(
    row: Mapping[str, str], capped: list[CappedRun], models: Mapping[str, Any]
) -> MeasuredRun:
    return MeasuredRun(
        run=row["run"],
        model=row["model"],
        gpu=row["gpu"],
        zero_grad_mode=row["zero_grad_mode"],
        total_bytes=int(row["total_gpu_memory"]),
        measured_bytes=int(row["ground_bytes"]),
        ran_out=row["real_oom"] == "true",
        spec=truth_job(
            models[row["model"]],
            batch_size=int(row["batch_size"]),
            optimizer=row["optimizer"],
            zero_grad_mode=row["zero_grad_mode"],
        ),
        capped=tuple(capped),
        columns=row,
    )


def truth_job(
    model: Mapping[str, Any], *, batch_size: int, optimizer: str, zero_grad_mode: str = ""
) -> JobSpec:
    """Make a job as the people who measured it describe theirs (tests/data/README.md)."""
    is_language_model = model["source"] == "transformers"
    unstated = ZeroGrad.AFTER_STEP if is_language_model else ZeroGrad.BEFORE_BACKWARD
    return parse_job_spec(
        {
            "model": model,
            "input": {"sequence_length": 128} if is_language_model else {"shape": [3, 86, 86]},
            "batch_size": batch_size,
            "optimizer": {"name": optimizer},
            "zero_grad": _ZERO_GRAD.get(zero_grad_mode, unstated),
            "iterations": 4,
        }
    )


def gpu_of(run: MeasuredRun) -> GpuSpec:
    """Find the GPU that a row was measured on by its product name, then by its memory.

    Raises:
        InputError: if the catalogue has none of its family.
    """
    same = [gpu for gpu in CATALOGUE.values() if gpu.product == run.gpu]
    if same:
        return same[0]
    family = [
        gpu
        for gpu in CATALOGUE.values()
        if gpu.name.split("-")[0] in run.gpu.lower() and not gpu.is_part
    ]
    if not family:
        raise InputError(f"{run.run}: GPU {run.gpu!r} is not in the catalogue")
    return min(family, key=lambda gpu: abs(gpu.memory_bytes - run.total_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedFigures:
    """Of runs with less memory than they wanted: how often the verdict was right."""

    rows: int
    right: int
    false_admits: int
    false_rejects: int

    @property
    def share_right(self) -> float | None:
        """Of all rows; None if there are none."""
        return self.right / self.rows if self.rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyFigures:
    """How well some rows were predicted; None where no row says anything about it."""

    rows: int
    median_relative_error: float | None
    p90_relative_error: float | None
    share_beyond_10_percent: float | None
    first_validation_right: float | None
    seconds_median: float | None
    capped: CappedFigures
    margin_99: float | None
    #: decisions at the cards' own sizes, counted with what happened; of published estimators too
    verdicts: VerdictCounts
    #: the same for capped runs; published estimators were run at their own estimates only
    capped_verdicts: VerdictCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySummary:
    """How well an estimator predicted all rows, and those of each group."""

    figures: AccuracyFigures
    by_model: dict[str, AccuracyFigures]
    by_gpu: dict[str, AccuracyFigures]
    by_zero_grad_mode: dict[str, AccuracyFigures]
    by_kind: dict[str, AccuracyFigures]

    def to_document(self) -> Mapping[str, object]:
        """Return it as JSON has it: the figures of all rows, and the groups beside them."""
        document: dict[str, Any] = asdict(self)
        figures: dict[str, Any] = document.pop("figures")
        return figures | document


def predict(run: MeasuredRun, timeline: Timeline, gpu: GpuSpec, seconds: float) -> Prediction:
    """Predict a row from its job's timeline: the peak, and whether it dies under each cap."""
    config = parse_alloc_conf("")
    played = replay(timeline, config, run.total_bytes - USUAL_CONTEXT_BYTES)
    return Prediction(
        bytes=played.peak_reserved_bytes + gpu.library_bytes,
        runs_out=bool(played.ooms),
        seconds=seconds,
        capped=tuple(bool(replay(timeline, config, cap.cap_bytes).ooms) for cap in run.capped),
    )


def published_prediction(run: MeasuredRun, estimator: str) -> Prediction:
    """Read what a published estimator said; -1 and nothing mean that it did not support the job."""
    predicted = _number(run.columns.get(f"{estimator}_bytes"))
    supported = predicted is not None and predicted > 0
    verdict = run.columns.get(f"{estimator}_oom")
    second = run.columns.get(f"{estimator}_2nd_oom")
    runs_out = verdict == "true" if supported and verdict else None
    return Prediction(
        bytes=predicted if supported else None,
        runs_out=runs_out,
        seconds=_number(run.columns.get(f"{estimator}_runtime_s")),
        # It claims that its own estimate is enough; "true" says that the job died within it.
        capped=(second == "true",) if supported and second else (),
        decision=None if runs_out is None else _DECISIONS[runs_out],
        capped_decisions=(Decision.ADMIT,) if supported and second else (),
        second_died=second == "true" if supported and second else None,
    )


#: of an estimator that only says whether a job runs out of memory
_DECISIONS = {False: Decision.ADMIT, True: Decision.REJECT}


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def summarize(
    runs: Sequence[MeasuredRun], predictions: Sequence[Prediction], *, is_published: bool
) -> AccuracySummary:
    """Return an estimator's figures over all rows, and by model, GPU, zero_grad mode and kind."""
    pairs = list(zip(runs, predictions, strict=True))

    def group(key: Callable[[MeasuredRun], str]) -> dict[str, AccuracyFigures]:
        return {
            value: _figures([pair for pair in pairs if key(pair[0]) == value], is_published)
            for value in sorted({key(run) for run in runs})
        }

    return AccuracySummary(
        figures=_figures(pairs, is_published),
        by_model=group(lambda run: run.model),
        by_gpu=group(lambda run: run.gpu),
        by_zero_grad_mode=group(lambda run: run.zero_grad_mode),
        by_kind=group(lambda run: "language model" if run.spec.input.sequence_length else "CNN"),
    )


def _figures(
    pairs: Sequence[tuple[MeasuredRun, Prediction]], is_published: bool
) -> AccuracyFigures:
    errors = sorted(
        abs(said.bytes - run.measured_bytes) / run.measured_bytes
        for run, said in pairs
        if said.bytes is not None and not run.ran_out
    )
    verdicts = [said.runs_out == run.ran_out for run, said in pairs if said.runs_out is not None]
    seconds = [said.seconds for _, said in pairs if said.seconds is not None]
    return AccuracyFigures(
        rows=len(errors),
        median_relative_error=median(errors) if errors else None,
        p90_relative_error=errors[ceil(0.9 * len(errors)) - 1] if errors else None,
        share_beyond_10_percent=_share([error > 0.1 for error in errors]),
        first_validation_right=_share(verdicts),
        seconds_median=median(seconds) if seconds else None,
        capped=_capped_own_estimate(pairs) if is_published else _capped(pairs),
        margin_99=_margin(pairs),
        verdicts=count_verdicts(
            (said.decision, run.ran_out) for run, said in pairs if said.decision is not None
        ),
        capped_verdicts=count_verdicts(_capped_decisions(pairs, is_published)),
    )


def _share(outcomes: Sequence[bool]) -> float | None:
    return sum(outcomes) / len(outcomes) if outcomes else None


def _capped(pairs: Sequence[tuple[MeasuredRun, Prediction]]) -> CappedFigures:
    outcomes = [
        (cap.died, dies)
        for run, said in pairs
        for cap, dies in zip(run.capped, said.capped, strict=False)
    ]
    return CappedFigures(
        rows=len(outcomes),
        right=sum(died == dies for died, dies in outcomes),
        false_admits=sum(died and not dies for died, dies in outcomes),
        false_rejects=sum(dies and not died for died, dies in outcomes),
    )


def _capped_decisions(
    pairs: Sequence[tuple[MeasuredRun, Prediction]], is_published: bool
) -> Iterator[tuple[Decision, bool]]:
    for run, said in pairs:
        died = said.capped if is_published else tuple(cap.died for cap in run.capped)
        yield from zip(said.capped_decisions, died, strict=False)


def _margin(pairs: Sequence[tuple[MeasuredRun, Prediction]]) -> float | None:
    """Return the share to add to ``required_bytes`` so that 99 % of the deaths lie below it.

    A job that died needs more than it had, so what it had is the least that the bound must exceed.
    The rank is that of split conformal prediction: it holds for one more job like these.
    """
    excess = sorted(
        max(0.0, cap.cap_bytes / said.required_bytes - 1)
        for run, said in pairs
        for cap in run.capped
        if cap.died and said.required_bytes
    )
    rank = ceil(0.99 * (len(excess) + 1))
    return excess[rank - 1] if 0 < rank <= len(excess) else None


def _capped_own_estimate(pairs: Sequence[tuple[MeasuredRun, Prediction]]) -> CappedFigures:
    """A published estimator was tried at its own estimate only: a death is a false admit."""
    died = [death for _, said in pairs for death in said.capped]
    return CappedFigures(
        rows=len(died), right=len(died) - sum(died), false_admits=sum(died), false_rejects=0
    )
