"""Spans of time, asked about moments."""

from __future__ import annotations

import pytest

from memgate.spans import Spans
from memgate.trace import Annotation

SPANS = Spans([Annotation(1, 3, "a"), Annotation(5, 9, "b")])


@pytest.mark.parametrize(
    ("at_us", "want_inside", "want_begun", "want_ended"),
    [(0, False, 0, 0), (1, True, 1, 0), (2.5, True, 1, 0), (3, False, 1, 1), (7, True, 2, 1)],
)
def test_a_moment_is_inside_from_the_beginning_to_before_the_end(
    at_us: float, want_inside: bool, want_begun: int, want_ended: int
) -> None:
    """What begins where another ends is not inside both."""
    assert SPANS.contains(at_us) == want_inside
    assert (SPANS.num_begun(at_us), SPANS.num_ended(at_us)) == (want_begun, want_ended)


def test_the_last_to_begin_is_found() -> None:
    """Whether or not it has ended."""
    assert [SPANS.last_begin(at_us) for at_us in (1, 4, 5, 100)] == [1, 1, 5, 5]


def test_no_spans_are_false() -> None:
    """And contain nothing."""
    assert not Spans([])
    assert not Spans([]).contains(1)
    assert SPANS
