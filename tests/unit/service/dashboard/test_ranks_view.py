"""What the page of a job shows about its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.decision import Decision
from memgate.jobspec import parse_job_spec
from memgate.report import Estimate, RankEntry, Reason
from memgate.units import GIB
from memgate_service.dashboard.ranks_view import view_ranks
from tests.builders import build_estimate

JOB: dict[str, Any] = {
    "model": {"source": "transformers", "name": "gpt2"},
    "input": {"sequence_length": 64},
    "batch_size": 8,
    "optimizer": {"name": "AdamW"},
}


def _estimate() -> Estimate:
    ranks = [
        RankEntry(rank=0, needs_bytes=4 * GIB, peak_bytes=3 * GIB, decision=Decision.ADMIT),
        RankEntry(rank=7, needs_bytes=6 * GIB, peak_bytes=5 * GIB, decision=Decision.UNCERTAIN),
    ]
    return build_estimate(
        needs_bytes=6 * GIB,
        available_bytes=8 * GIB,
        world_size=8,
        ranks=ranks,
        breakdown={"parameters": GIB, "gradients": GIB, "optimizer_state": 2 * GIB},
        reasons=[Reason(code="RANKS_RUN", message="ranks 0 and 7 were run")],
    )


def test_a_job_of_one_rank_has_nothing_to_compare() -> None:
    """The page shows no such part."""
    assert view_ranks(build_estimate(), parse_job_spec(JOB)) is None


def test_each_rank_that_was_run_has_a_row() -> None:
    """With how much of its GPU it needs, which of them decides, and how many were not run."""
    view = view_ranks(_estimate(), parse_job_spec(JOB))

    assert view is not None
    assert [(row.rank, row.width, row.is_decisive) for row in view.rows] == [
        (0, 50.0, False),
        (7, 75.0, True),
    ]
    assert (view.num_others, view.told) == (6, "ranks 0 and 7 were run")
    assert (view.strategy, view.is_assumed) == ("ddp", True)


@pytest.mark.parametrize(
    ("divided", "want"),
    [
        ({"strategy": "ddp"}, ["whole on every GPU"] * 3),
        (
            {"strategy": "zero1"},
            ["whole on every GPU"] * 2 + ["divided over 8 GPUs, about 16.00 GiB in all"],
        ),
        (
            {"strategy": "zero2"},
            [
                "divided over 8 GPUs between steps; whole on every GPU during a step, which is"
                " counted as activations"
            ],
        ),
        ({"strategy": "fsdp2"}, ["divided over 8 GPUs, about 8.00 GiB in all"] * 2),
        ({"strategy": "hsdp", "replicas": 2}, ["divided over 4 GPUs, about 4.00 GiB in all"] * 2),
        ({"strategy": "pp"}, ["of the layers of one stage; there are 8 stages"] * 3),
    ],
)
def test_what_is_divided_follows_from_the_strategy(
    divided: dict[str, Any], want: list[str]
) -> None:
    """Part by part, with how much there is in all."""
    job = parse_job_spec({**JOB, "distributed": {**divided, "world_size": 8}})
    view = view_ranks(_estimate(), job)

    assert view is not None
    assert [row.how for row in view.shards][: len(want)] == want
    assert not view.is_assumed


def test_of_a_command_only_the_ranks_are_known() -> None:
    """Its code decides what is divided."""
    view = view_ranks(_estimate(), None)

    assert view is not None
    assert (view.shards, view.strategy, view.is_assumed) == ((), "", False)
