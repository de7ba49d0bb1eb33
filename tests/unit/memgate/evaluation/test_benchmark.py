"""Tables of measured jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memgate.errors import InputError
from memgate.evaluation.benchmark import (
    BenchmarkRow,
    LeftOut,
    Measure,
    Scored,
    name_method,
    read_table,
    to_gib,
    write_benchmark,
)
from memgate.jobspec import parse_job_spec
from memgate.units import GIB

JOB: dict[str, Any] = {
    "model": {"source": "transformers", "name": "gpt2"},
    "input": {"sequence_length": 128},
    "batch_size": 4,
}


def _row(**fields: str) -> dict[str, str]:
    return {
        "source": "owner/name@abc:file.md",
        "model": "GPT-2",
        "method": "full",
        "measured_gib": "2",
        "measure_kind": "allocated",
        "job": json.dumps(JOB),
    } | fields


def test_a_row_with_a_job_is_asked_about() -> None:
    """Its source is the repository; the method follows from the job."""
    (row,) = read_table([_row(runtime="torch-2.6")], "a.csv")

    assert isinstance(row, BenchmarkRow)
    assert (row.source, row.method, row.measure) == ("owner/name", "full", Measure.ALLOCATED)
    assert (row.measured_gib, row.runtime) == (2.0, "torch-2.6")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"job": ""}, "no column 'job' says how to run it"),
        ({"measure_kind": "oom"}, "measured was: oom"),
    ],
)
def test_what_cannot_be_asked_about_is_counted(fields: dict[str, str], why: str) -> None:
    """With the reason."""
    assert read_table([_row(**fields)], "a.csv") == [LeftOut(source="owner/name", why=why)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"measured_gib": "much"}, "a.csv, line 2: could not convert string to float: 'much'"),
        ({"job": "{"}, "a.csv, line 2: Expecting"),
        ({"job": "{}"}, "a.csv, line 2, column 'job': "),
    ],
)
def test_a_broken_row_is_refused(fields: dict[str, str], message: str) -> None:
    """With its table and line."""
    with pytest.raises(InputError, match=message):
        read_table([_row(**fields)], "a.csv")


def test_a_table_without_a_column_is_refused() -> None:
    """The column is named."""
    row = _row()
    del row["source"]

    with pytest.raises(InputError, match=r"a\.csv lacks the column 'source'"):
        read_table([row], "a.csv")


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"lora": {"rank": 8}}, "LoRA"),
        ({"lora": {"rank": 8}, "quantization": {"method": "nf4"}}, "quantised"),
        ({"distributed": {"strategy": "fsdp", "world_size": 2}}, "fsdp"),
        ({}, "full"),
    ],
)
def test_the_method_is_what_matters_most(fields: dict[str, Any], want: str) -> None:
    """One word for each row."""
    assert name_method(parse_job_spec(JOB | fields)) == want


def test_the_report_keeps_kinds_of_figures_apart() -> None:
    """By source and by method, for each engine; what was not asked about is at its end."""
    rows = read_table([_row(), _row(measured_gib="4"), _row(measure_kind="reserved")], "a.csv")
    said: list[dict[str, float | str]] = [
        {"phantom": 2.2, "llmem": "no"},
        {"phantom": 4.0, "llmem": "no"},
        {"phantom": 1.0, "llmem": 2.0},
    ]
    scored = [
        Scored(row=row, said=one)
        for row, one in zip(rows, said, strict=True)
        if isinstance(row, BenchmarkRow)
    ]

    text = write_benchmark(scored, [LeftOut(source="x", why="y")] * 2, ["phantom", "llmem"])

    assert "| owner/name | phantom | 2 | 2 | 5.00 % | 10.00 % |" in text
    assert "| full | llmem | 2 | 0 |  |  |" in text
    assert "| full | phantom | 1 | 1 | 50.00 % | 50.00 % |" in text
    assert text.index("## Allocated") < text.index("## Reserved") < text.index("| x | y | 2 |")
    assert "## Device" not in text
    assert to_gib(3 * GIB) == 3.0
