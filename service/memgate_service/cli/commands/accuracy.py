"""``memgate accuracy``: predict every row of measured runs, and compare with others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.accuracy import AccuracyFigures
from memgate.evaluation.verdicts import VerdictCounts
from memgate_service.cli.accuracy_plots import prepare_pictures
from memgate_service.cli.commands.options import AsJson, RuntimeName
from memgate_service.cli.outcomes import Outcomes, draw, write_evaluation
from memgate_service.cli.predicting import predict_all, read_rows
from memgate_worker.local import check_engine
from memgate_worker.runtimes.runtime import find_runtime


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
        list[str] | None,
        typer.Option(
            help="Which engine predicts; may be given several times. The default is phantom.",
        ),
    ] = None,
    runtime: RuntimeName = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="The first N rows only.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Draw predicted against measured, and the errors, into DIR."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the xMem paper's evaluation into DIR: report.md, pictures."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict every row of a truth file and print the table against the published estimators.

    Example: memgate accuracy peaks.csv --capped capped_runs.csv --runtime torch-2.6
    """
    engines = list(dict.fromkeys(engine or ["phantom"]))
    for one in engines:
        check_engine(one)
    rows = read_rows(peaks, capped, models, limit)
    name = find_runtime(runtime).name
    for option, directory in (("--plot", plot), ("--report", report)):
        if directory is not None:
            prepare_pictures(directory, option)
    all_said = {one: predict_all(rows, one, name, silent=as_json) for one in engines}
    outcomes = Outcomes(runtime=name, rows=rows, said=all_said)
    files = [] if plot is None else draw(outcomes, plot)
    if report is not None:
        files += write_evaluation(outcomes, report)
    if as_json:
        typer.echo(json.dumps(outcomes.to_document()))
        return
    _print(outcomes)
    for path in files:
        typer.echo(f"{'report' if path.suffix == '.md' else 'picture'}: {path}")


def _print(outcomes: Outcomes) -> None:
    engines = [*outcomes.said]
    summaries = outcomes.summaries()
    table = Table(
        *("estimator", "rows", "median error", "p90", "beyond 10 %", "first verdict right"),
        *("capped runs", "right", "false admits", "seconds"),
        title=f"{', '.join(engines)} with {outcomes.runtime}",
        title_justify="left",
    )
    shown = [(name, one.figures) for name, one in summaries.items()]
    shown += [(f"{name}, published", one.figures) for name, one in outcomes.repeated().items()]
    for name, figures in shown:
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
    ours = summaries[engines[0]]
    console.print(_verdict_table(ours.figures))
    for name, groups in (
        ("by kind", ours.by_kind),
        ("by gpu", ours.by_gpu),
        ("by model", ours.by_model),
    ):
        console.print(_group_table(name, groups))
    for run, reason in outcomes.failed.items():
        console.print(f"{run} could not be run: {reason}", markup=False)


def _verdict_table(figures: AccuracyFigures) -> Table:
    table = Table("verdicts", *("admit, lived", "admit, died", "uncertain, lived"))
    for column in ("uncertain, died", "reject, lived", "reject, died"):
        table.add_column(column)
    for name, counts in (
        ("at the cards' own sizes", figures.verdicts),
        ("under caps", figures.capped_verdicts),
    ):
        table.add_row(name, *(str(count) for count in _counts(counts)))
    return table


def _counts(counts: VerdictCounts) -> tuple[int, ...]:
    return tuple(asdict(counts).values())


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
