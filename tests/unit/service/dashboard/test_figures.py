"""What was counted by the minute, added up."""

from __future__ import annotations

import pytest

from memgate_service.dashboard.figures import chart_rows, sum_up
from memgate_worker.queue.history import step_seconds, time_step


def test_nothing_is_no_figure() -> None:
    """Shares of nothing are unknown, not zero."""
    nothing = sum_up([])

    assert (nothing.num_verdicts, nothing.saved_bytes, nothing.engines) == (0, 0, ())
    assert nothing.share("admit") is None
    assert nothing.hit_share is None
    assert nothing.saved_mean_bytes is None


def test_minutes_are_added_up() -> None:
    """Outcomes, what they saved, and where answers were found."""
    minutes = [
        {"outcome:admit": 3, "saved_bytes": 10, "cache:memory": 6, "runs:made": 1},
        {"outcome:reject": 1, "saved_bytes": -2, "cache:nowhere": 2, "outcome:passing": 5},
    ]

    seen = sum_up(minutes)

    assert (seen.num_verdicts, seen.saved_bytes, seen.saved_mean_bytes) == (4, 8, 2)
    assert (seen.share("admit"), seen.share("uncertain")) == (0.75, 0.0)
    assert seen.hit_share == 0.75
    assert seen.runs == {"made": 1}


def test_latencies_are_quantiles_by_engine() -> None:
    """Within a fifth of the truth: that is how fine the scale is."""
    slow = {f"time:profile:{time_step(20.0)}": 1}
    quick = {f"time:phantom:{time_step(0.5)}": 90, f"time:phantom:{time_step(3.0)}": 10}

    phantom, profile = sum_up([quick, slow]).engines

    assert (phantom.engine, phantom.num_jobs) == ("phantom", 100)
    assert 0.5 <= phantom.median_seconds <= 0.6
    assert 3.0 <= phantom.p95_seconds <= 3.6
    assert 20.0 <= profile.median_seconds == profile.p95_seconds <= 24.0


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0123, 1.0, 59.0, 86_400.0])
def test_a_time_lies_on_the_step_above_it(seconds: float) -> None:
    """And above the step before."""
    step = time_step(seconds)

    assert step_seconds(step) >= seconds
    assert step == 0 or step_seconds(step - 1) < seconds


def test_the_chart_has_rows_where_something_was_decided() -> None:
    """In order; whoever is at fault, there is no answer."""
    minutes = {
        9: {"outcome:admit": 1},
        7: {"outcome:caller": 2, "outcome:operator": 1},
        8: {"cache:memory": 3},
    }

    assert chart_rows(minutes) == [[7, 0, 0, 0, 3], [9, 1, 0, 0, 0]]
