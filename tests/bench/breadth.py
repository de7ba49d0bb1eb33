"""Runs hundreds of timm models on the phantom, beside what a real A100 showed for them.

``make breadth TIMM=timm_a100.csv`` runs it: does every architecture trace, and is measured minus
predicted one constant? The file is no part of the repository: it is made from the public data of
GPUMemNet (repository itu-rad/GPUMemNet), a row a run, with the columns ``model`` (a name of timm),
``batch_size`` and ``max_gpu_memory_mib`` (in use on the whole card).
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import InputError, MemgateError
from memgate.gpus import find_gpu
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.units import MIB
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.runtimes.runtime import Runtime, find_runtime
from tests.bench.gaps import Gaps, Kind, Row, percentile, sort_out

GPU = find_gpu("a100-40")
#: What such a card shows beside the segments. The bench finds it; a replay at the card's capacity
#: needs it beforehand.
BESIDE_BYTES = 1700 * MIB
ROWS_OUT = Path("build/breadth.csv")
_COLUMNS = ("model", "batch_size", "max_gpu_memory_mib")
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the file."""

    model: str
    batch_size: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What the phantom says of it."""

    reserved_bytes: int
    runs_out: bool
    num_parameters: int
    seconds: float


def read_measured(path: Path) -> list[Measured]:
    """Read the file.

    Raises:
        InputError: if it is not there or is another one.
    """
    try:
        rows = list(csv.DictReader(path.read_text().splitlines()))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give the figures with: make breadth TIMM=path. They are no"
            f" part of the repository: a CSV with the columns {', '.join(_COLUMNS)}"
        ) from None
    if not rows or not set(_COLUMNS) <= set(rows[0]):
        raise InputError(f"{path}: needs rows with the columns {', '.join(_COLUMNS)}")
    return [
        Measured(
            model=row["model"],
            batch_size=int(row["batch_size"]),
            bytes=int(float(row["max_gpu_memory_mib"]) * MIB),
        )
        for row in rows
    ]


def training_job(model: str, batch_size: int) -> JobSpec:
    """Make the job that timm's own training script runs unless told otherwise.

    Its ``train.py``: SGD with these values, ``zero_grad`` after each update, cuDNN's benchmark on.
    """
    sgd = {"momentum": 0.9, "nesterov": True, "weight_decay": 2e-5}
    return parse_job_spec(
        {
            "model": {"source": "timm", "name": model, "kwargs": {"num_classes": 1000}},
            "input": {},
            "batch_size": batch_size,
            "optimizer": {"name": "SGD", "kwargs": sgd},
            "zero_grad": "after_step",
            "cudnn_benchmark": True,
            "iterations": 3,
        }
    )


_engine: PhantomEngine | None = None


def _start_engine(runtime: Runtime) -> None:
    global _engine  # one per process of the pool: its initializer has nowhere else to put it
    _engine = PhantomEngine(runtime)


def _trace(measured: Measured) -> Traced | str:
    """Trace a row's job and replay it on the card, or say why it could not be traced."""
    assert _engine is not None
    try:
        traced = _engine.trace(training_job(measured.model, measured.batch_size), GPU)
    except MemgateError as error:
        return error.message
    run = replay(traced.timeline, parse_alloc_conf(""), GPU.memory_bytes - BESIDE_BYTES)
    return Traced(
        reserved_bytes=run.peak_reserved_bytes,
        runs_out=bool(run.ooms),
        num_parameters=traced.num_parameters,
        seconds=traced.seconds,
    )


def trace_all(rows: Sequence[Measured], runtime: Runtime) -> Iterator[Traced | str]:
    """Trace in as many processes as there are processors, each with a warm engine."""
    console = Console(stderr=True)
    with ProcessPoolExecutor(
        max_workers=os.cpu_count(), initializer=_start_engine, initargs=(runtime,)
    ) as pool:
        # A bar for a person; a line now and then for a log.
        results = track(
            pool.map(_trace, rows),
            total=len(rows),
            description="tracing",
            console=console,
            disable=not console.is_terminal,
        )
        for number, result in enumerate(results, start=1):
            if not console.is_terminal and number % 50 == 0:
                console.print(f"traced {number} of {len(rows)}", highlight=False)
            yield result


def join(
    every: Sequence[Measured], chosen: Sequence[Measured], said: Sequence[Traced]
) -> list[Row]:
    """Put what was predicted beside what was measured, at this and at other batch sizes."""
    siblings: dict[str, dict[int, int]] = {}
    for measured in every:
        siblings.setdefault(measured.model, {})[measured.batch_size] = measured.bytes
    return [
        Row(
            model=measured.model,
            batch_size=measured.batch_size,
            measured_bytes=measured.bytes,
            siblings=siblings[measured.model],
            reserved_bytes=traced.reserved_bytes,
            runs_out=traced.runs_out,
            weights_bytes=traced.num_parameters * _FLOAT_BYTES,
        )
        for measured, traced in zip(chosen, said, strict=True)
    ]


def _figures(gaps: Gaps, num_models: int, num_failed: int, seconds: float) -> Table:
    table = Table("figure", "goal", "here", title="timm on the phantom", title_justify="left")
    ran = (Kind.LIVED, Kind.WORKSPACES, Kind.UNEXPLAINED)
    spread = gaps.gaps(Kind.LIVED)
    table.add_row("models that trace", ">= 97 %", f"{1 - num_failed / num_models:.1%}")
    table.add_row("of so many", "", str(num_models))
    table.add_row("the constant, MiB", "1650 to 1950", f"{gaps.constant_bytes / MIB:,.0f}")
    if spread:
        low, high = (percentile(spread, share) / MIB for share in (0.05, 0.95))
        table.add_row("90 % of the plain rows' gaps", "", f"{low:,.0f} to {high:,.0f} MiB")
    for name, goal, kinds in (
        ("rows that ran", "<= 3 %", ran),
        ("of these, without workspaces", "", (Kind.LIVED, Kind.UNEXPLAINED)),
    ):
        left = gaps.residuals(*kinds)
        table.add_row(name, "", str(len(left)))
        if left:
            table.add_row("  residual, median", goal, f"{percentile(left, 0.5):.2%}")
            table.add_row("  residual, p90", "", f"{percentile(left, 0.9):.2%}")
    for batch_size in sorted({row.batch_size for row, _ in gaps.kinds}):
        left = gaps.residuals(*ran, batch_size=batch_size)
        if left:
            shown = f"{percentile(left, 0.5):.2%} of {len(left)} rows"
            table.add_row(f"residual of those that ran, median, batch {batch_size}", "", shown)
    for kind, count in Counter(kind for _, kind in gaps.kinds).items():
        table.add_row(f"rows, {kind}", "", str(count))
    table.add_row("seconds in all", "<= 1800", f"{seconds:,.0f}")
    return table


def _odd_rows(gaps: Gaps) -> Iterator[str]:
    """Name each row that is no plain measurement, and what was expected of it."""
    for kind in Kind:
        rows = [row for row, found in gaps.kinds if found is kind]
        if kind is Kind.LIVED or not rows:
            continue
        yield f"\n{kind} ({len(rows)} rows):"
        for row in rows:
            expected = (row.reserved_bytes + gaps.constant_bytes) / MIB
            yield (
                f"  {row.model} batch {row.batch_size}: measured {row.measured_bytes / MIB:,.0f},"
                f" expected {'out of memory at ' if row.runs_out else ''}{expected:,.0f} MiB"
            )


def _write_rows(gaps: Gaps, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("model", "batch_size", "measured_mib", "reserved_mib", "residual", "kind"))
        for row, kind in gaps.kinds:
            residual = row.residual(gaps.constant_bytes)
            sizes = (row.measured_bytes // MIB, row.reserved_bytes // MIB)
            writer.writerow((row.model, row.batch_size, *sizes, f"{residual:.4f}", kind))


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make breadth", description=__doc__)
    parser.add_argument("figures", type=Path, help="timm_a100.csv; not part of the repository")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--runtime", help="library versions; see: memgate runtimes")
    parser.add_argument("--rows", type=Path, default=ROWS_OUT, help="where each row is written")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Trace every model of the file and print the figures."""
    options = _arguments(arguments)
    every = read_measured(options.figures)
    chosen = [row for row in every if row.batch_size in options.batch_sizes]
    start = time.perf_counter()
    said = list(trace_all(chosen, find_runtime(options.runtime)))
    seconds = time.perf_counter() - start
    pairs = list(zip(chosen, said, strict=True))
    made = [(row, traced) for row, traced in pairs if isinstance(traced, Traced)]
    failed = {row.model: why for row, why in pairs if isinstance(why, str)}
    console = Console(width=120, highlight=False, markup=False, emoji=False)
    if made:
        gaps = sort_out(join(every, [row for row, _ in made], [traced for _, traced in made]))
        console.print(_figures(gaps, len({row.model for row in chosen}), len(failed), seconds))
        for line in _odd_rows(gaps):
            console.print(line)
        _write_rows(gaps, options.rows)
        console.print(f"\nevery row: {options.rows}")
    for model, why in failed.items():
        console.print(f"{model} does not trace: {why}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(f"breadth: {error.message}")
