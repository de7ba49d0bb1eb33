"""Memory saved, as the paper counts it."""

from __future__ import annotations

import pytest

from memgate.savings import memory_saved, was_right
from memgate.units import GIB


@pytest.mark.parametrize(
    ("decision", "is_right", "want_gib"),
    [
        ("admit", True, 8),
        ("admit", False, -12),
        ("reject", True, 12),
        ("reject", False, -12),
        ("uncertain", True, 0),
        ("uncertain", False, 0),
    ],
)
def test_a_right_verdict_saves_and_a_wrong_one_wastes_the_device(
    decision: str, is_right: bool, want_gib: int
) -> None:
    """Of 12 GiB, with a bound of 4: the rest of the device, all of it, or less than nothing."""
    saved = memory_saved(
        decision, capacity_bytes=12 * GIB, upper_bound_bytes=4 * GIB, is_right=is_right
    )

    assert saved == want_gib * GIB


@pytest.mark.parametrize(
    ("decision", "ran_out", "is_within", "want"),
    [
        ("admit", False, True, True),
        ("admit", False, False, False),
        ("admit", True, True, False),
        ("reject", True, False, True),
        ("reject", False, True, False),
    ],
)
def test_a_verdict_is_right_if_the_job_did_as_was_said(
    decision: str, ran_out: bool, is_within: bool, want: bool
) -> None:
    """Admitted jobs live within their prediction; rejected ones die."""
    assert was_right(decision, ran_out=ran_out, is_within=is_within) is want
