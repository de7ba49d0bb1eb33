"""``memgate accuracy``: predict every row of measured runs, and compare with others."""

from __future__ import annotations

import csv
import json
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from memgate.accuracy import (
    PUBLISHED,
    AccuracyFigures,
    AccuracySummary,
    MeasuredRun,
    Prediction,
    bound_run,
    gpu_of,
    predict,
    published_prediction,
    read_measured_runs,
    summarize,
)
from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.bound_figures import BoundedRun, describe_bound, measure_bound
from memgate.calibration import current_calibration
from memgate.capacity import MemoryNeeds
from memgate.errors import InputError, MemgateError
from memgate_service.cli.accuracy_plots import plot_accuracy, prepare_pictures
from memgate_service.cli.commands.options import AsJson, RuntimeName
from memgate_worker.local import check_engine, trace_spec
from memgate_worker.runtimes.runtime import find_runtime

#: estimators as their authors write them
_SPELLED = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune", "llmem": "LLMem"}


def accuracy_command(
    peaks: Annotated[
        Path, typer.Argument(metavar="PEAKS", help="CSV of measured runs, such as peaks.csv.")
    ],
    capped: Annotated[
        Path | None,
        typer.Option(metavar="CAPPED", help="CSV of the same jobs run again under a cap."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Model name to job spec; models.json next to PEAKS."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Which engine predicts: auto, phantom or profile.")
    ] = "phantom",
    runtime: RuntimeName = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="The first N rows only.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Draw predicted against measured, and the errors, into DIR."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict every row of a truth file and print the table against the published estimators.

    Example: memgate accuracy peaks.csv --capped capped_runs.csv --runtime torch-2.6
    """
    check_engine(engine)
    rows = _read_rows(peaks, capped, models, limit)
    name = find_runtime(runtime).name
    if plot is not None:
        prepare_pictures(plot)
    outcomes = _Outcomes(
        engine=engine,
        runtime=name,
        rows=rows,
        said=_predict_all(rows, engine, name, silent=as_json),
    )
    pictures = [] if plot is None else outcomes.draw(plot)
    if as_json:
        failed = outcomes.failed
        summaries = {
            estimator: summary.to_document() for estimator, summary in outcomes.summaries().items()
        }
        bound = measure_bound(outcomes.bounded, current_calibration().coverage)
        typer.echo(json.dumps(summaries | {"runtime": name, "failed": failed, "bound": bound}))
        return
    _print(outcomes.summaries(), engine, name, outcomes.failed)
    if outcomes.bounded:
        typer.echo(describe_bound(measure_bound(outcomes.bounded, current_calibration().coverage)))
    for path in pictures:
        typer.echo(f"picture: {path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcomes:
    """What one engine, and the published estimators, said about measured runs."""

    engine: str
    runtime: str
    rows: list[MeasuredRun]
    #: by the engine, for each row: a prediction, or why there is none
    said: list[Prediction | str]

    @property
    def failed(self) -> dict[str, str]:
        return {
            row.run: said
            for row, said in zip(self.rows, self.said, strict=True)
            if isinstance(said, str)
        }

    @property
    def made(self) -> list[tuple[MeasuredRun, Prediction]]:
        return [
            (row, said)
            for row, said in zip(self.rows, self.said, strict=True)
            if isinstance(said, Prediction)
        ]

    @property
    def bounded(self) -> list[BoundedRun]:
        return [run for row, said in self.made if (run := bound_run(row, said))]

    def published(self, name: str) -> list[Prediction]:
        return [published_prediction(row, name) for row in self.rows]

    def summaries(self) -> dict[str, AccuracySummary]:
        rows, said = [row for row, _ in self.made], [said for _, said in self.made]
        return {self.engine: summarize(rows, said, is_published=False)} | {
            name: summarize(self.rows, self.published(name), is_published=True)
            for name in PUBLISHED
        }

    def draw(self, directory: Path) -> list[Path]:
        ours = f"{self.engine}, {self.runtime}"
        published = {
            _SPELLED[name]: list(zip(self.rows, self.published(name), strict=True))
            for name in PUBLISHED
        }
        drawn = {ours: self.made} | published
        return plot_accuracy(drawn, directory, compared=(ours, _SPELLED["xmem"]))


def _read_rows(
    peaks: Path, capped: Path | None, models: Path | None, limit: int | None
) -> list[MeasuredRun]:
    return read_measured_runs(
        _rows(peaks)[:limit],
        _rows(capped) if capped else [],
        json.loads(_read(models or peaks.with_name("models.json"))),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(_read(path).splitlines()))


def _predict_all(
    rows: list[MeasuredRun], engine: str, runtime: str, *, silent: bool
) -> list[Prediction | str]:
    """Predict in as many processes as there are processors, each with a warm engine.

    Rows that differ only in batch size go to the same process one after another: an engine may
    remember what it ran.
    """
    groups: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        key = row.spec.model_dump_json(exclude={"batch_size"})
        groups.setdefault(key, []).append(position)
    said: dict[int, Prediction | str] = {}
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = {
            pool.submit(_predict_group, [rows[at] for at in positions], engine, runtime): positions
            for positions in groups.values()
        }
        console = Console(stderr=True)
        hidden = silent or not console.is_terminal
        with Progress(console=console, disable=hidden) as progress:
            task = progress.add_task("predicting", total=len(rows))
            for job in as_completed(jobs):
                said.update(zip(jobs[job], job.result(), strict=True))
                progress.update(task, completed=len(said))
    return [said[position] for position in range(len(rows))]


def _predict_group(rows: list[MeasuredRun], engine: str, runtime: str) -> list[Prediction | str]:
    return [_predict(row, engine, runtime) for row in rows]


def _predict(row: MeasuredRun, engine: str, runtime: str) -> Prediction | str:
    """Predict one row, or say why the job could not be run."""
    gpu = gpu_of(row)
    try:
        traced = trace_spec(row.spec, gpu, engine=engine, runtime=runtime)
    except MemgateError as error:
        return error.message
    said = predict(row, traced.timeline, gpu, traced.seconds)
    if not row.capped:
        return said
    needs = MemoryNeeds(traced.timeline, parse_alloc_conf(""))
    return replace(
        said,
        required_bytes=needs.least_bytes(),
        family=traced.family,
        workspaces=traced.workspaces,
    )


def _print(
    summaries: dict[str, AccuracySummary], engine: str, runtime: str, failed: dict[str, str]
) -> None:
    table = Table(
        *("estimator", "rows", "median error", "p90", "beyond 10 %", "first verdict right"),
        *("capped runs", "right", "false admits", "seconds"),
        title=f"{engine} with {runtime}",
        title_justify="left",
    )
    for name, summary in summaries.items():
        figures = summary.figures
        table.add_row(
            name,
            str(figures.rows),
            _percent(figures.median_relative_error, 2),
            _percent(figures.p90_relative_error, 2),
            _percent(figures.share_beyond_10_percent, 1),
            _percent(figures.first_validation_right, 1),
            str(figures.capped.rows),
            _percent(figures.capped.share_right, 1),
            str(figures.capped.false_admits),
            "" if figures.seconds_median is None else f"{figures.seconds_median:.2f}",
        )
    console = Console(width=120)
    console.print(table)
    ours = summaries[engine]
    for name, groups in (
        ("by kind", ours.by_kind),
        ("by gpu", ours.by_gpu),
        ("by model", ours.by_model),
    ):
        console.print(_group_table(name, groups))
    for run, reason in failed.items():
        console.print(f"{run} could not be run: {reason}", markup=False)


def _group_table(name: str, groups: dict[str, AccuracyFigures]) -> Table:
    table = Table(name, "rows", "median error", "p90", "capped", "right")
    for value, figures in groups.items():
        table.add_row(
            value,
            str(figures.rows),
            _percent(figures.median_relative_error, 2),
            _percent(figures.p90_relative_error, 2),
            str(figures.capped.rows),
            str(figures.capped.right),
        )
    return table


def _percent(share: float | None, digits: int) -> str:
    return "" if share is None else f"{share * 100:.{digits}f} %"
