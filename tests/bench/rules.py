"""Measures what each rule of the orchestration changes on measured runs.

``make rules PEAKS=peaks.csv`` runs it: every row is predicted by the profile engine with all rules,
and again without each of them. A rule that changes nothing on these rows is listed too.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from memgate.accuracy import (
    MeasuredRun,
    Prediction,
    gpu_of,
    predict,
    read_measured_runs,
    summarize,
)
from memgate.errors import InputError, MemgateError
from memgate.rules import RULES
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.runtimes.runtime import Runtime, find_runtime

#: what stands for all rules at once
ALL = "(all rules)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What the rows look like without one rule."""

    without: str
    num_changed: int
    median_error: float | None
    share_beyond_10_percent: float | None
    capped_right: int
    capped_rows: int


def read_rows(peaks: Path, capped: Path | None, models: Path) -> list[MeasuredRun]:
    """Read measured runs; those that ran out of memory count in the verdicts alone.

    Raises:
        InputError: if a file is not there or is another one.
    """
    try:
        texts = [path.read_text() if path else "" for path in (peaks, capped, models)]
    except OSError as error:
        raise InputError(
            f"{error.filename}: {error.strerror}; give measured runs with: make rules PEAKS=path"
        ) from None
    tables = [list(csv.DictReader(text.splitlines())) for text in texts[:2]]
    return read_measured_runs(tables[0], tables[1], json.loads(texts[2]))


def find_effects(
    runs: Sequence[MeasuredRun], said: Sequence[Mapping[str, Prediction]]
) -> list[Effect]:
    """Turn predictions, of each row by what was left out, into a line for each rule."""
    return [_effect(runs, said, name) for name in (ALL, *(rule.__name__ for rule in RULES))]


def _effect(
    runs: Sequence[MeasuredRun], said: Sequence[Mapping[str, Prediction]], without: str
) -> Effect:
    figures = summarize(runs, [of_row[without] for of_row in said], is_published=False).figures
    return Effect(
        without=without,
        num_changed=sum(
            (of_row[without].bytes, of_row[without].capped)
            != (of_row[ALL].bytes, of_row[ALL].capped)
            for of_row in said
        ),
        median_error=figures.median_relative_error,
        share_beyond_10_percent=figures.share_beyond_10_percent,
        capped_right=figures.capped.right,
        capped_rows=figures.capped.rows,
    )


_engine: ProfileEngine | None = None


def _start(runtime: Runtime) -> None:
    global _engine  # one per process of the pool: its initializer has nowhere else to put it
    _engine = ProfileEngine(runtime)


def predict_group(runs: Sequence[MeasuredRun]) -> list[dict[str, Prediction] | str]:
    """Predict rows with all rules and without each; of a job that cannot be run, tell why."""
    assert _engine is not None
    return [_predict(_engine, run) for run in runs]


def _predict(engine: ProfileEngine, run: MeasuredRun) -> dict[str, Prediction] | str:
    gpu = gpu_of(run)
    try:
        timeline = engine.trace(run.spec, gpu).timeline
        said = {ALL: predict(run, timeline, gpu, 0.0)}
        for rule in RULES:
            other = engine.trace(run.spec, gpu, without=[rule.__name__]).timeline
            changed = other.events != timeline.events
            said[rule.__name__] = predict(run, other, gpu, 0.0) if changed else said[ALL]
    except MemgateError as error:
        return error.message
    return said


def _predict_all(
    runs: Sequence[MeasuredRun], runtime: Runtime
) -> tuple[list[MeasuredRun], list[dict[str, Prediction]]]:
    groups: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        groups.setdefault(run.spec.model_dump_json(exclude={"batch_size"}), []).append(run)
    done: list[MeasuredRun] = []
    said: list[dict[str, Prediction]] = []
    with ProcessPoolExecutor(os.cpu_count(), initializer=_start, initargs=(runtime,)) as pool:
        answers = pool.map(predict_group, groups.values())
        for group, told in track(
            zip(groups.values(), answers, strict=True), "predicting", len(groups), console=_STDERR
        ):
            for run, of_row in zip(group, told, strict=True):
                if isinstance(of_row, str):
                    _STDERR.print(f"{run.run}: {of_row}", markup=False)
                else:
                    done.append(run)
                    said.append(of_row)
    return done, said


_STDERR = Console(stderr=True)


def print_effects(effects: Sequence[Effect]) -> None:
    """Print a line a rule."""
    table = Table("without", "rows changed", "median error", "beyond 10 %", "capped right")
    for effect in effects:
        table.add_row(
            effect.without,
            str(effect.num_changed),
            f"{effect.median_error:.2%}",
            f"{effect.share_beyond_10_percent:.1%}",
            f"{effect.capped_right} of {effect.capped_rows}",
        )
    Console(width=100).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the rows, predict them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peaks", type=Path, help="measured runs, models.json beside it")
    parser.add_argument("--capped", type=Path, help="the same jobs under a cap")
    parser.add_argument("--models", type=Path, help="model name to job spec")
    parser.add_argument("--runtime", help="library versions to predict with")
    asked = parser.parse_args(arguments)
    try:
        models = asked.models or asked.peaks.with_name("models.json")
        runs = read_rows(asked.peaks, asked.capped, models)
        print_effects(find_effects(*_predict_all(runs, find_runtime(asked.runtime))))
    except InputError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
