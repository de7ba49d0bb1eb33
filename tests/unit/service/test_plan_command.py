"""``memgate plan``: what it is asked, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.decision import Decision
from memgate.gpu_plan import GpuCounts, GpuPlan, find_plan
from memgate.jobspec import parse_job_spec
from memgate.units import GIB
from memgate_service.cli.printing import print_estimate, print_plan
from tests.builders import build_estimate

JOB: dict[str, Any] = {
    "model": {"source": "transformers", "name": "gpt2"},
    "input": {"sequence_length": 128},
    "batch_size": 2,
}


@pytest.mark.parametrize(
    ("gpus", "want"),
    [
        ("h100-80", "give a GPU and how many, such as h100-80:1-64"),
        ("h100-80:64-1", "the smaller number comes first; write h100-80:1-64"),
        ("h100-80:0-4", "give two numbers from 1 to 4096"),
        ("h100-90:1-9", "h100-80"),
    ],
)
def test_how_many_of_which_gpu_must_be_said(run: Any, tmp_path: Path, gpus: str, want: str) -> None:
    """A wrong range is bad usage, with how it is written."""
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(JOB))

    ran = run("plan", spec, "--gpus", gpus)

    assert ran.status == 2
    assert want in ran.err


def _plan(decision: Decision) -> GpuPlan:
    def ask(_: Any) -> Any:
        return build_estimate(decision=decision, traffic={"all_gather": 2 * GIB})

    return find_plan(ask, parse_job_spec(JOB), "h100-80", GpuCounts(2, 4))


def test_each_line_shows_what_it_needs_and_sends(capsys: Any) -> None:
    """And the runs that prove it."""
    print_plan(_plan(Decision.ADMIT))

    said = capsys.readouterr().out
    assert "ddp" in said
    assert "1024.00 MiB" in said  # half of what is gathered, on two GPUs
    assert "each line was run, 1 run in all" in said
    assert "fits on 2 x h100-80 (ddp, 5.00 GiB on each)" in said


def test_an_estimate_has_a_table_of_ranks(capsys: Any) -> None:
    """Each with its decision and what it needs."""
    ranks = [
        {"rank": rank, "needs_bytes": 5 * GIB, "peak_bytes": 4 * GIB, "decision": "admit"}
        for rank in (0, 7)
    ]
    print_estimate(build_estimate(ranks=ranks, world_size=8, timings_ms={"total": 1}))

    said = capsys.readouterr().out
    assert "rank" in said
    assert said.count("4.00 GiB") >= 2
