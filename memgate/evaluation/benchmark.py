"""Tables of jobs that others measured -> rows that can be asked about, and a report.

The format is in docs/benchmark.md. A row is asked about if it says what its job is, as a job spec
in its column ``job``; the others are counted, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from statistics import median

from memgate.errors import InputError
from memgate.evaluation.markdown import percent, table
from memgate.jobspec import JobSpec, ModelSource, parse_job_spec
from memgate.units import GIB

#: every table has them; ``job`` and ``runtime`` may be left out
COLUMNS = ("source", "model", "method", "measured_gib", "measure_kind")


class Measure(StrEnum):
    """What a figure is of: they cannot be held against each other."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """A measured job that can be asked about."""

    source: str
    title: str
    method: str
    measure: Measure
    measured_gib: float
    job: JobSpec
    #: of the versions that it was measured with; empty: it is not said
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row that cannot be asked about, and why."""

    source: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What engines said of a row, in GiB; the text of an error where there is no answer."""

    row: BenchmarkRow
    said: Mapping[str, float | str]


def read_table(rows: Iterable[Mapping[str, str]], name: str) -> list[BenchmarkRow | LeftOut]:
    """Read a table.

    Raises:
        InputError: if it lacks a column, or a job is not a job spec.
    """
    found = []
    for line, row in enumerate(rows, 2):
        if missing := [column for column in COLUMNS if row.get(column) is None]:
            raise InputError(
                f"{name} lacks the column {missing[0]!r}: a table of measured jobs has"
                f" {', '.join(COLUMNS)}"
            )
        found.append(_read_row(row, f"{name}, line {line}"))
    return found


def _read_row(row: Mapping[str, str], place: str) -> BenchmarkRow | LeftOut:
    source = row["source"].partition("@")[0]
    measure = next((one for one in Measure if row["measure_kind"].startswith(one)), None)
    if measure is None:
        return LeftOut(source=source, why=f"measured was: {row['measure_kind'][:40]}")
    if not row.get("job"):
        return LeftOut(source=source, why="no column 'job' says how to run it")
    try:
        measured = float(row["measured_gib"])
        job = parse_job_spec(json.loads(row["job"]))
    except ValueError as error:  # of a number, or of JSON
        raise InputError(f"{place}: {error}") from None
    except InputError as error:
        raise InputError(f"{place}, column 'job': {error.message}") from None
    return BenchmarkRow(
        source=source,
        title=f"{row['model']}, {row['method']}",
        method=name_method(job),
        measure=measure,
        measured_gib=measured,
        job=job,
        runtime=row.get("runtime") or "",
    )


def name_method(job: JobSpec) -> str:
    """Return how a job trains, by what of it matters most for memory."""
    if job.distributed is not None:
        return job.distributed.strategy.value
    if job.quantization is not None:
        return "quantised"
    if job.lora is not None:
        return "LoRA"
    return "diffusion" if job.model.source is ModelSource.DIFFUSERS else "full"


def write_benchmark(
    scored: Sequence[Scored], left_out: Sequence[LeftOut], engines: Sequence[str]
) -> str:
    """Return the report: errors by source, by method and by what was measured."""
    measures = [one for one in Measure if any(row.row.measure is one for row in scored)]
    lines = ["# Benchmark", ""]
    for measure in measures:
        rows = [one for one in scored if one.row.measure is measure]
        lines += [f"## {measure.value.capitalize()}", ""]
        for name, key in (("source", _source_of), ("method", _method_of)):
            lines += [*_errors(rows, name, key, engines), ""]
    lines += ["## Not asked about", ""]
    reasons = sorted({(one.source, one.why) for one in left_out})
    counts = [
        [source, why, str(sum((one.source, one.why) == (source, why) for one in left_out))]
        for source, why in reasons
    ]
    return "\n".join([*lines, *table(("source", "why", "rows"), counts)]) + "\n"


def _source_of(row: BenchmarkRow) -> str:
    return row.source


def _method_of(row: BenchmarkRow) -> str:
    return row.method


def _errors(
    scored: Sequence[Scored],
    name: str,
    key: Callable[[BenchmarkRow], str],
    engines: Sequence[str],
) -> list[str]:
    rows = []
    for group in sorted({key(one.row) for one in scored}):
        of_group = [one for one in scored if key(one.row) == group]
        for engine in engines:
            errors = sorted(_list_errors(of_group, engine))
            most = errors[ceil(0.9 * len(errors)) - 1] if errors else None
            half = median(errors) if errors else None
            cells = (str(len(of_group)), str(len(errors)), percent(half, 2), percent(most, 2))
            rows.append([group, engine, *cells])
    return table((name, "engine", "rows", "answered", "median error", "p90"), rows)


def _list_errors(scored: Iterable[Scored], engine: str) -> list[float]:
    return [
        abs(said - one.row.measured_gib) / one.row.measured_gib
        for one in scored
        if not isinstance(said := one.said[engine], str)
    ]


def to_gib(size_bytes: int) -> float:
    """Return a size as tables have it."""
    return size_bytes / GIB
