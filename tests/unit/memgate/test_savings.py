"""Memory saved, as the paper counts it."""

from __future__ import annotations

import pytest

from memgate.savings import memory_saved
from memgate.units import GIB

NOBODY_TOLD = None


@pytest.mark.parametrize(
    ("decision", "measured", "ran_out", "want_gib"),
    [
        ("admit", NOBODY_TOLD, False, 8),
        ("admit", 3 * GIB, False, 8),
        ("admit", 4 * GIB, False, 8),
        ("admit", 4 * GIB + 1, False, -12),
        ("admit", 12 * GIB, True, -12),
        ("reject", NOBODY_TOLD, False, 12),
        ("reject", 12 * GIB, True, 12),
        ("reject", 3 * GIB, False, -12),
        ("uncertain", 3 * GIB, False, 0),
        ("uncertain", NOBODY_TOLD, False, 0),
    ],
)
def test_a_right_verdict_saves_and_a_wrong_one_wastes_the_device(
    decision: str, measured: int | None, ran_out: bool, want_gib: int
) -> None:
    """Of 12 GiB, with a bound of 4: the rest of the device, all of it, or less than nothing."""
    saved = memory_saved(
        decision,
        capacity_bytes=12 * GIB,
        upper_bound_bytes=4 * GIB,
        measured_bytes=measured,
        ran_out=ran_out,
    )

    assert saved == want_gib * GIB
