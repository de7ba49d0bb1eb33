"""Whether the bound holds what it promises."""

from __future__ import annotations

import pytest

from service.dashboard.accuracy_page import chart_points
from service.dashboard.coverage import group_rows, make_row, measure_coverage
from worker.store import Outcome


def _outcome(measured: int, *, gpu: str = "t4", **fields: object) -> Outcome:
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
    return Outcome.model_validate(known | fields)


def test_without_outcomes_nothing_is_said() -> None:
    """Nor of jobs that ran out of memory: they tell nothing of their peak."""
    assert measure_coverage([]) is None
    assert measure_coverage([_outcome(300, ran_out=True)]) is None
    assert make_row("all", []).saved_bytes is None


def test_a_peak_is_held_against_the_predicted_peak() -> None:
    """Not against the least memory in which the job runs: with more to be had it takes more."""
    seen = measure_coverage([_outcome(100), _outcome(110), _outcome(111)])

    assert seen is not None
    assert (seen.num_within, seen.num_outcomes) == (2, 3)


@pytest.mark.parametrize(
    ("beyond", "total", "holds"), [(0, 10, True), (1, 10, True), (1, 200, True), (20, 200, False)]
)
def test_few_jobs_do_not_break_a_promise(beyond: int, total: int, holds: bool) -> None:
    """One of ten may be chance; twenty of two hundred are not."""
    outcomes = [_outcome(111 if number < beyond else 100) for number in range(total)]

    seen = measure_coverage(outcomes)

    assert seen is not None
    assert seen.low <= seen.share <= seen.high
    assert seen.holds is holds


def test_the_margin_is_that_of_split_conformal_prediction() -> None:
    """The hundredth of a hundred: with fewer, there is no rank for 99 %."""
    few = measure_coverage([_outcome(100 + n % 3) for n in range(98)])
    many = measure_coverage([_outcome(100 + (n == 0) * 9 + (n == 1) * 5) for n in range(199)])

    assert few is not None
    assert few.margin is None
    assert many is not None
    assert many.margin == pytest.approx(0.05)
    assert many.ratios[3] == (0.5, 1.0)


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
