"""What is fast stays fast: ratios within one run, held to those of an earlier version."""

from __future__ import annotations

from memgate.allocator.native_core import load_core
from tests.bench.ratios import (
    MAX_REGRESSION,
    Ratio,
    find_regressions,
    find_short_ratios,
    measure_ratio,
    read_baseline,
)


def test_no_ratio_is_a_quarter_larger_than_it_was() -> None:
    """Of processor times, measured in turn; `make bench-all` has more of them."""
    assert load_core() is not None, "there is nothing to compare: install with a C++ compiler"
    found = {name: ratio.value for name, ratio in find_short_ratios()}
    again: dict[str, float] = {}
    if find_regressions(found, read_baseline("short")):  # other programs can spoil a few turns
        again = {name: ratio.value for name, ratio in find_short_ratios()}

    best = {name: min(value, again.get(name, value)) for name, value in found.items()}

    assert find_regressions(best, read_baseline("short")) == []


def test_a_regression_is_told() -> None:
    """With both figures, and what was not measured, or is new, as well."""
    baseline = {"same": 1.0, "slower": 2.0, "gone": 1.0}
    found = {"same": MAX_REGRESSION, "slower": 2.6, "new": 1.0}

    assert find_regressions(found, baseline) == [
        "slower: 2.6, in the baseline 2: 1.30 times",
        "gone: not measured",
        "new: not in the baseline (--renew)",
    ]


def test_a_ratio_is_the_median_of_its_turns() -> None:
    """Both sides are measured in each turn, after one that counts for nothing."""
    asked: list[str] = []
    seconds = iter([9.0, 9.0, 1.0, 2.0, 8.0, 2.0, 3.0, 2.0])

    def measure(name: str) -> float:
        asked.append(name)
        return next(seconds)

    ratio = measure_ratio(lambda: measure("ours"), lambda: measure("against"), 3)

    assert asked == ["ours", "against"] * 4
    assert ratio == Ratio(ours=[1.0, 8.0, 3.0], against=[2.0, 2.0, 2.0])
    assert ratio.value == 1.5
