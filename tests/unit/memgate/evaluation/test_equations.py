"""The equations of the xMem paper, on numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memgate.accuracy import MeasuredRun, Prediction, published_prediction
from memgate.decision import Decision
from memgate.evaluation.equations import (
    Score,
    dies_within,
    find_percentile,
    list_scores,
    score_groups,
    score_trials,
    try_estimate,
    try_estimates,
)
from tests.unit.memgate.evaluation.runs import make_run


def _xmem(size: str, oom: str = "false", second: str = "", **fields: str) -> dict[str, Any]:
    return {"xmem_bytes": size, "xmem_oom": oom, "xmem_2nd_oom": second} | fields


#: A card of 1000 bytes. Worked out on paper, with the notation of the paper:
#:
#: | row | estimate | predicted, real | second | error        | C1 | C2 | conserved     |
#: |-----|----------|-----------------|--------|--------------|----|----|---------------|
#: | a   | 550      | lives, lives    | lives  | 50/500 = 0.1 | 1  | 1  | 1000-550=450  |
#: | b   | 400      | lives, lives    | dies   | 100/500= 0.2 | 1  | 0  | -1000         |
#: | c   | 1200     | dies, dies      |        |              | 1  | 1  | 1000          |
#: | d   | 900      | lives, dies     |        |              | 0  | 0  | -1000         |
#: | e   | 1100     | dies, lives     |        | 600/500= 1.2 | 0  | 0  | -1000         |
#:
#: median error 0.2; P1 = 2/5; P2 = 3/5; conserved (450-1000+1000-1000-1000)/5 = -310;
#: second error: row a ran in 550 and showed 440, so 110/440 = 0.25, and no other row has one;
#: score 1 = 0.7*0.4 + 0.3*0.2 = 0.34; score 2 = 0.7*0.6 + 0.3*0.25 = 0.495
HAND_CHECKED = [
    make_run(capped=[(545, "false", "440")], **_xmem("550", second="false")),
    make_run(**_xmem("400", second="true")),
    make_run(real_oom="true", **_xmem("1200", "true")),
    make_run(real_oom="true", **_xmem("900", second="true")),
    make_run(**_xmem("1100", "true")),
]


def _score(runs: list[MeasuredRun]) -> Score:
    return score_trials(try_estimates(runs, [published_prediction(run, "xmem") for run in runs]))


def test_the_hand_checked_table() -> None:
    """Every figure of the paper, for five rows."""
    score = _score(HAND_CHECKED)

    assert (score.trials, score.rows, score.first_decided, score.second_decided) == (5, 3, 5, 5)
    assert score.median_error == pytest.approx(0.2)
    assert score.second_median_error == pytest.approx(0.25)
    assert score.first_failure == pytest.approx(0.4)
    assert score.second_failure == pytest.approx(0.6)
    assert score.saved_bytes == pytest.approx(-310)
    assert score.first_score == pytest.approx(0.34)
    assert score.second_score == pytest.approx(0.495)


@pytest.mark.parametrize(
    ("estimate", "want"),
    [
        pytest.param(599, None, id="between a death and a life"),
        pytest.param(600, False, id="lived with exactly this"),
        pytest.param(700, False, id="lived with less"),
        pytest.param(400, True, id="died with exactly this"),
        pytest.param(300, True, id="died with more"),
    ],
)
def test_capped_runs_stand_in(estimate: int, want: bool | None) -> None:
    """Lived at that cap or a lower one, died at that or a higher one, undecided between."""
    run = make_run(capped=[(600, "false", "590"), (400, "true", "")])

    assert dies_within(run, estimate) is want


def test_capped_runs_that_contradict_each_other_decide_nothing() -> None:
    """A job that lived with less than it died with says nothing about what lies between."""
    run = make_run(capped=[(400, "false", "390"), (600, "true", "")])

    assert dies_within(run, 500) is None


def test_a_run_in_the_own_estimate_goes_before_one_that_stands_in() -> None:
    """It was tried, so nothing has to stand in."""
    run = make_run(capped=[(400, "false", "390")], **_xmem("550", second="true"))

    trial = try_estimate(run, published_prediction(run, "xmem"))

    assert trial is not None
    assert trial.second_right is False


@pytest.mark.parametrize(
    ("decision", "want_first", "want_second", "want_saved"),
    [
        (Decision.ADMIT, True, True, 450),
        (Decision.UNCERTAIN, None, None, None),
        (Decision.REJECT, False, False, -1000),
    ],
)
def test_the_products_verdict_is_what_is_evaluated(
    decision: Decision, want_first: bool | None, want_second: bool | None, want_saved: int | None
) -> None:
    """An uncertain one is neither right nor wrong; whether the replay died does not matter."""
    run = make_run(capped=[(500, "false", "490")])
    said = Prediction(bytes=550, runs_out=True, seconds=None, capped=(), decision=decision)

    trial = try_estimate(run, said)

    assert trial is not None
    found = (trial.first_right, trial.second_right, trial.saved_bytes)
    assert found == (want_first, want_second, want_saved)


def test_an_estimate_that_nothing_decides_counts_in_no_share() -> None:
    """The job was never tried with so much, nor with less."""
    run = make_run(**_xmem("550"))

    score = _score([run])

    assert (score.first_failure, score.second_decided, score.second_failure) == (0.0, 0, None)
    assert (score.saved_bytes, score.second_score, score.quadrant) == (None, None, None)


def test_the_equation_decides_where_the_estimator_has_not() -> None:
    """And everywhere, if it is asked to."""
    silent = make_run(real_oom="true", xmem_bytes="1001")
    cautious = make_run(real_oom="true", **_xmem("999", "true"))
    said = [published_prediction(run, "xmem") for run in (silent, cautious)]

    by_verdict = try_estimates([silent, cautious], said)
    by_equation = try_estimates([silent, cautious], said, by_equation=True)

    assert [trial.first_right for trial in by_verdict] == [True, True]
    assert [trial.first_right for trial in by_equation] == [True, False]


def test_a_job_without_an_estimate_is_left_out() -> None:
    """-1 and nothing are none; without any, nothing is known."""
    score = _score([make_run(xmem_bytes="-1")])

    assert (score.trials, score.median_error, score.first_score) == (0, None, None)


@pytest.mark.parametrize(
    ("error", "failure", "want"),
    [
        (0.19, 0.19, "optimal"),
        (0.19, 0.2, "underestimation"),
        (0.2, 0.19, "overestimation"),
        (0.2, 0.2, "worst"),
        (0.2, None, None),
    ],
)
def test_quadrants_meet_at_20_percent(error: float, failure: float | None, want: str) -> None:
    """As the paper names them."""
    score = replace(
        _score(HAND_CHECKED),
        median_error=error,
        second_median_error=None,
        second_failure=failure,
    )

    assert score.quadrant == want


def test_scores_of_groups_become_a_distribution() -> None:
    """The 95th percentile is the smallest score that so many do not exceed."""
    trials = try_estimates(
        HAND_CHECKED, [published_prediction(run, "xmem") for run in HAND_CHECKED]
    )

    groups = score_groups(trials, lambda run: "died" if run.ran_out else "lived")

    assert [*groups] == ["died", "lived"]
    assert list_scores(groups.values(), second=False) == [groups["lived"].first_score]
    assert list_scores(groups.values(), second=True) == [groups["lived"].second_score]
    assert find_percentile([1, 2, 3, 4], 0.5) == 2
    assert find_percentile([1, 2, 3, 4], 0.95) == 4
    assert find_percentile([], 0.95) is None
