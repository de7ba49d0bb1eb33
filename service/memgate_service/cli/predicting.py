"""A file of measured runs -> the runs, and what an engine predicts for each."""

from __future__ import annotations

import csv
import json
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from memgate.accuracy import MeasuredRun, Prediction, gpu_of, predict, read_measured_runs
from memgate.errors import InputError, MemgateError
from memgate.evaluation.verdicts import decide_under_cap
from memgate.gpus import GpuTarget
from memgate_worker.local import answer_run, trace_spec


def read_rows(
    peaks: Path, capped: Path | None, models: Path | None, limit: int | None
) -> list[MeasuredRun]:
    """Read measured runs, and the same jobs under caps.

    Raises:
        InputError: if a file is missing or is not one of them.
    """
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


def predict_all(
    rows: list[MeasuredRun], engine: str, runtime: str, *, silent: bool
) -> list[Prediction | str]:
    """Predict in as many processes as there are processors, each with a warm engine.

    Rows that differ only in batch size go to the same process one after another: an engine may
    remember what it ran. Of a job that cannot be run, say why.
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
            task = progress.add_task(f"predicting ({engine})", total=len(rows))
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
    # what the product says of a card of the size that it was measured to have
    answer = answer_run(traced, GpuTarget(gpu=replace(gpu, memory_bytes=row.total_bytes)))
    needs, has_doubts = answer.needs, bool(traced.doubts)
    return replace(
        said,
        required_bytes=needs.least_bytes() if row.capped else None,
        decision=answer.estimate.decision,
        capped_decisions=tuple(
            decide_under_cap(needs, cap.cap_bytes, has_doubts=has_doubts) for cap in row.capped
        ),
    )
