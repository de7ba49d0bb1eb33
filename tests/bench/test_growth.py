"""The cost of an event may grow with the logarithm of the live blocks, not faster."""

from __future__ import annotations

import pytest

from tests.bench.allocator import random_timeline, seconds_per_event


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_ten_times_the_blocks_do_not_double_the_cost_of_an_event(conf: str) -> None:
    """A ratio within one run: logarithmic growth would be 1.26, linear 10."""
    small, large = random_timeline(8_000), random_timeline(80_000)

    # measured in turn, so that a busy machine slows both
    ratios = [seconds_per_event(large, conf) / seconds_per_event(small, conf) for _ in range(5)]

    assert min(ratios) < 2.0
