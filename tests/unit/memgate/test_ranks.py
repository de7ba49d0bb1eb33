"""The answers for the ranks of a job become one."""

from __future__ import annotations

import pytest

from memgate.decision import Decision
from memgate.ranks import RANKS_NOT_RUN, RANKS_RUN, RankAnswer, join_ranks, name_ranks
from memgate.report import Reason
from memgate.units import GIB
from tests.builders import build_estimate


def _said(rank: int, needs_bytes: int, decision: Decision, *fits_on: str) -> RankAnswer:
    said = build_estimate(needs_bytes=needs_bytes, decision=decision, fits_on=list(fits_on))
    return RankAnswer(rank, said)


def test_the_worst_rank_decides() -> None:
    """A worse decision counts before a larger need, and the answer has every rank in its order."""
    joined = join_ranks(
        [
            _said(0, 5 * GIB, Decision.ADMIT, "t4", "h200"),
            _said(3, 9 * GIB, Decision.UNCERTAIN, "h200"),
            _said(7, 12 * GIB, Decision.ADMIT, "h200"),
        ],
        world_size=8,
    )

    assert (joined.decision, joined.needs_bytes, joined.world_size) == ("uncertain", 9 * GIB, 8)
    assert [(one.rank, one.needs_bytes, one.decision) for one in joined.ranks] == [
        (0, 5 * GIB, "admit"),
        (3, 9 * GIB, "uncertain"),
        (7, 12 * GIB, "admit"),
    ]


def test_a_job_fits_where_all_of_its_ranks_fit() -> None:
    """The worst rank alone does not say where the others fit."""
    joined = join_ranks(
        [_said(0, 5, Decision.ADMIT, "t4", "h200"), _said(1, 9, Decision.ADMIT, "l4", "h200")], 2
    )

    assert joined.fits_on == ["h200"]


@pytest.mark.parametrize(
    ("needs", "world_size", "want"),
    [
        ({0: 5}, 8, "of 8 ranks, rank 0 was run, and the other 7 do what it does"),
        ({0: 5, 1: 5}, 2, "of 2 ranks, ranks 0 and 1 were run; they need the same"),
        (
            {0: 5, 7: 6},
            8,
            "of 8 ranks, ranks 0 and 7 were run, and the other 6 do what these do; rank 7 needs"
            " the most",
        ),
    ],
)
def test_a_reason_says_which_ranks_were_run(
    needs: dict[int, int], world_size: int, want: str
) -> None:
    """Nobody should think that all of them were."""
    said = [_said(rank, size, Decision.ADMIT) for rank, size in needs.items()]

    assert join_ranks(said, world_size).why(RANKS_RUN) == want


def test_ranks_that_may_differ_are_not_said_to_do_the_same() -> None:
    """Where others were not run and may need more, one reason must not deny the other."""
    said = _said(0, 5, Decision.UNCERTAIN)
    doubt = Reason(code=RANKS_NOT_RUN, message="the time was up")
    reasons = [*said.estimate.reasons, doubt]
    doubted = RankAnswer(0, said.estimate.model_copy(update={"reasons": reasons}))

    assert join_ranks([doubted], 8).why(RANKS_RUN) == "of 8 ranks, rank 0 was run"


def test_ranks_are_named_as_people_do() -> None:
    """One, two, or many."""
    assert name_ranks([0]) == "rank 0"
    assert name_ranks([0, 1, 7]) == "ranks 0, 1 and 7"
