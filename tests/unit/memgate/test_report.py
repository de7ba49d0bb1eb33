"""Rows of the table of GPUs."""

from __future__ import annotations

from memgate.decision import Decision
from memgate.gpus import CATALOGUE
from memgate.report import Estimate, FitEntry, Reason


def test_a_row_keeps_of_an_estimate_what_a_table_shows() -> None:
    """The first reason is the one that decided."""
    why = Reason(code="FITS", message="it fits")
    said = Estimate.model_construct(
        decision=Decision.ADMIT,
        needs_bytes=5,
        upper_bound_bytes=5,
        headroom_bytes=7,
        reasons=[why, Reason(code="OTHER", message="")],
    )

    row = FitEntry.of(CATALOGUE["t4"], said)

    assert (row.gpu, row.capacity_bytes) == ("t4", CATALOGUE["t4"].memory_bytes)
    assert (row.decision, row.needs_bytes, row.headroom_bytes) == (Decision.ADMIT, 5, 7)
    assert row.reason == why


def test_a_row_of_which_nothing_is_known_says_why() -> None:
    """No figure is better than a made up one."""
    why = Reason(code="JOB_FAILED", message="no kernel image")

    row = FitEntry.unknown(CATALOGUE["p100-16"], why)

    assert (row.decision, row.upper_bound_bytes, row.headroom_bytes) == ("unknown", None, None)
    assert (row.gpu, row.reason) == ("p100-16", why)
