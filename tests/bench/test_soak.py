"""What ``make soak`` calls growth."""

from __future__ import annotations

import pytest

from memgate.units import MIB
from tests.bench.soak import judge


@pytest.mark.parametrize(
    ("name", "was", "per_minute", "want"),
    [
        ("memory of service 0", 100 * MIB, MIB / 2, True),
        ("memory of service 0", 100 * MIB, MIB / 20, False),
        ("memory of host 0", 1000 * MIB, MIB / 2, False),
        ("files of worker 0", 10, 1, True),
        ("files of worker 0", 10, 0, False),
    ],
)
def test_growth_is_seen_after_minute_ten(
    name: str, was: float, per_minute: float, want: bool
) -> None:
    """Memory by more than 5 % and 10 MB; open files, keys and files by more than come and go."""
    samples = [(minute / 4, {name: was + per_minute * minute / 4}) for minute in range(240)]

    assert bool(judge(samples)) is want


def test_what_grows_at_first_only_is_no_growth() -> None:
    """Caches fill: minute ten is the measure."""
    samples = [(float(m), {"memory of service 0": min(m, 10) * 20.0 * MIB}) for m in range(60)]

    assert not judge(samples)
