"""Decisions: ordered, and one enum for every door."""

from __future__ import annotations

import pytest

from memgate.decision import Decision


def test_the_worst_comes_first() -> None:
    """Many devices combine with ``min``, whatever letters the values begin with."""
    assert sorted(Decision, reverse=True) == [
        Decision.ADMIT,
        Decision.UNCERTAIN,
        Decision.UNKNOWN,
        Decision.REJECT,
    ]
    assert min(Decision.ADMIT, Decision.REJECT, Decision.UNCERTAIN) is Decision.REJECT
    assert max(Decision.UNCERTAIN, Decision.ADMIT) is Decision.ADMIT


def test_every_comparison_goes_by_rank() -> None:
    """Not by the alphabet: "admit" is not below "reject"."""
    assert Decision.REJECT < Decision.UNCERTAIN <= Decision.UNCERTAIN
    assert Decision.ADMIT > Decision.UNCERTAIN >= Decision.UNCERTAIN
    assert not Decision.ADMIT < Decision.REJECT


@pytest.mark.parametrize("compare", ["__lt__", "__le__", "__gt__", "__ge__"])
def test_a_word_is_not_a_decision(compare: str) -> None:
    """Ordering against a plain string would silently go by letters."""
    assert getattr(Decision.ADMIT, compare)("admit") is NotImplemented
