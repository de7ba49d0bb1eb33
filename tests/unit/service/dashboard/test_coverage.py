"""Whether the bound holds what it promises."""

from __future__ import annotations

import pytest

from memgate_service.dashboard.accuracy_page import chart_points
from memgate_service.dashboard.coverage import group_rows, make_row, measure_coverage
from memgate_worker.queue.client import MeasuredOutcome


def _outcome(measured: int, *, gpu: str = "t4", **fields: object) -> MeasuredOutcome:
    known = {
        "job": "0" * 32,
        "model": "m",
        "gpu": gpu,
        "predicted_peak_bytes": 100,
        "upper_bound_bytes": 90,
        "peak_bound_bytes": 110,
        "measured_peak_bytes": measured,
        "ran_out": False,
        "decision": "admit",
        "capacity_bytes": 200,
    }
    return MeasuredOutcome.model_validate(known | fields)


def test_without_outcomes_nothing_is_said() -> None:
    """Nor of what was never admitted or rejected."""
    assert measure_coverage([]) is None
    assert make_row("all", []).saved_bytes is None
    unknown = measure_coverage([_outcome(300, ran_out=True, decision=None)])
    assert unknown is not None
    assert (unknown.lived_share, unknown.died_share, unknown.ratios) == (None, None, ())
    assert (unknown.low, unknown.high, unknown.holds) == (0.0, 1.0, True)


def test_a_peak_is_held_against_the_predicted_peak() -> None:
    """Not against the least memory in which the job runs: with more to be had it takes more."""
    assert _outcome(110).is_within
    assert not _outcome(111).is_within
    assert not _outcome(91, peak_bound_bytes=None).is_within


def test_the_bound_is_held_against_lives_and_deaths() -> None:
    """Of admitted jobs and of rejected ones; a high peak alone kills nobody."""
    outcomes = [
        _outcome(500),
        _outcome(100, ran_out=True),
        _outcome(100, decision="reject"),
        _outcome(100, decision="reject", ran_out=True),
        _outcome(100, decision="uncertain", ran_out=True),
    ]

    seen = measure_coverage(outcomes)

    assert seen is not None
    assert (seen.num_admitted, seen.num_lived, seen.lived_share) == (2, 1, 0.5)
    assert (seen.num_rejected, seen.num_died, seen.died_share) == (2, 1, 0.5)
    assert seen.ratios[0] == (0.01, 1.0)
    assert seen.ratios[-1] == (0.99, 5.0)


@pytest.mark.parametrize(
    ("deaths", "total", "holds"), [(0, 10, True), (1, 10, True), (1, 200, True), (20, 200, False)]
)
def test_few_jobs_do_not_break_a_promise(deaths: int, total: int, holds: bool) -> None:
    """One of ten may be chance; twenty of two hundred are not."""
    outcomes = [_outcome(100, ran_out=number < deaths) for number in range(total)]

    seen = measure_coverage(outcomes)

    assert seen is not None
    assert seen.lived_share is not None
    assert seen.low <= seen.lived_share <= seen.high
    assert seen.holds is holds


def test_groups_come_by_size_with_what_they_saved() -> None:
    """A right admission saves what the bound leaves; a wrong one wastes the device."""
    outcomes = [_outcome(100), _outcome(100), _outcome(111), _outcome(50, gpu="a10g")]
    outcomes.append(_outcome(1, gpu="a10g", decision=None))

    t4, a10g = group_rows(outcomes, lambda outcome: outcome.gpu)

    assert (t4.name, t4.figures.num_outcomes, t4.saved_bytes) == ("t4", 3, round(20 / 3))
    assert (a10g.name, a10g.saved_bytes) == ("a10g", 110)


def test_the_chart_tells_within_from_beyond() -> None:
    """Jobs that ran out are in neither."""
    outcomes = [_outcome(100), _outcome(111), _outcome(5, ran_out=True)]

    assert chart_points(outcomes) == {"within": [[100, 100]], "beyond": [[111, 100]]}
