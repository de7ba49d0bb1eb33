"""Decisions about measured runs, counted with what happened."""

from __future__ import annotations

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.decision import Decision
from memgate.evaluation.verdicts import VerdictCounts, count_verdicts, decide_under_cap
from memgate.timeline import Alloc, Timeline
from memgate.units import MIB
from memgate.verdict import MARGIN


def test_decisions_are_counted_with_what_happened() -> None:
    """Six counts, of which two are right, two wrong and two undecided."""
    counts = count_verdicts(
        [
            (Decision.ADMIT, False),
            (Decision.ADMIT, False),
            (Decision.ADMIT, True),
            (Decision.UNCERTAIN, True),
            (Decision.UNCERTAIN, False),
            (Decision.REJECT, True),
            (Decision.REJECT, False),
        ]
    )

    assert counts == VerdictCounts(
        admit_lived=2,
        admit_died=1,
        uncertain_lived=1,
        uncertain_died=1,
        reject_lived=1,
        reject_died=1,
    )
    assert (counts.right, counts.wrong, counts.uncertain, counts.total) == (3, 2, 2, 7)


@pytest.mark.parametrize(
    ("cap_mib", "want"),
    [
        pytest.param(998, Decision.REJECT, id="less than it needs"),
        pytest.param(1000, Decision.UNCERTAIN, id="what it needs, and no margin"),
        pytest.param(1000 * (1 + MARGIN) + 1, Decision.ADMIT, id="what it needs, with the margin"),
    ],
)
def test_under_a_cap_the_context_plays_no_part(cap_mib: float, want: Decision) -> None:
    """The limit is the allocator's, so what is decided depends on segments and the margin only."""
    needs = MemoryNeeds(Timeline(events=(Alloc(0, 1000 * MIB),), labels=()), parse_alloc_conf(""))

    assert decide_under_cap(needs, int(cap_mib * MIB)) is want


def test_under_a_cap_a_doubt_forbids_to_admit() -> None:
    """However much room there is."""
    needs = MemoryNeeds(Timeline(events=(Alloc(0, MIB),), labels=()), parse_alloc_conf(""))

    assert decide_under_cap(needs, 1000 * MIB, has_doubts=True) is Decision.UNCERTAIN
