"""``memgate benchmark``: engines against every table of measured jobs in a folder."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from memgate.errors import InputError, MemgateError
from memgate.evaluation.benchmark import (
    BenchmarkRow,
    LeftOut,
    Measure,
    Scored,
    read_table,
    to_gib,
    write_benchmark,
)
from memgate.gpus import GpuTarget, find_gpu
from memgate.report import Estimate
from memgate_service.cli.commands.options import RuntimeName
from memgate_worker.local import check_engine, estimate_spec


def benchmark_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of tables (CSV) of measured jobs.")
    ],
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Which engine is scored; may be given several times: phantom."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="What jobs are run for.")] = "a100-80",
    runtime: RuntimeName = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report there.")
    ] = None,
) -> None:
    """Score engines on measured jobs: per source, per method, and by what was measured.

    Example: memgate benchmark tables --engine phantom --engine dnnmem -o report.md
    """
    engines = list(dict.fromkeys(engine or ["phantom"]))
    for one in engines:
        check_engine(one)
    target = GpuTarget(gpu=find_gpu(gpu))
    found = [row for path in _tables(folder) for row in _read(path)]
    rows = [row for row in found if isinstance(row, BenchmarkRow)]
    scored = [_score(row, engines, target, runtime) for row in rows]
    left_out = [row for row in found if isinstance(row, LeftOut)]
    text = write_benchmark(scored, left_out, engines)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror or error}") from None


def _tables(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.csv"))
    if not found:
        raise InputError(f"{folder}: there is no table (*.csv) of measured jobs")
    return found


def _read(path: Path) -> list[BenchmarkRow | LeftOut]:
    with path.open(newline="") as file:
        return read_table(csv.DictReader(file), path.name)


def _score(row: BenchmarkRow, engines: list[str], target: GpuTarget, runtime: str | None) -> Scored:
    said: dict[str, float | str] = {}
    for engine in engines:
        try:
            answer = estimate_spec(
                row.job, target, engine=engine, runtime=runtime or row.runtime or None
            )
        except MemgateError as error:
            said[engine] = error.message
        else:
            said[engine] = to_gib(_figure(answer.estimate, row.measure))
    return Scored(row=row, said=said)


def _figure(said: Estimate, measure: Measure) -> int:
    """Return what is to be held against the kind of figure that was measured."""
    return {
        Measure.ALLOCATED: said.peak_allocated_bytes,
        Measure.RESERVED: said.peak_reserved_bytes,
        Measure.DEVICE: said.peak_bytes,
    }[measure]
