"""Spans of time that do not overlap, asked about moments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol


class Span(Protocol):
    """Something that takes time: an operator, a call of a module, an annotation."""

    @property
    def begin_us(self) -> float:
        """When it begins."""

    @property
    def end_us(self) -> float:
        """When it ends."""


class Spans:
    """Spans that do not overlap, in the order of time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._begins = [span.begin_us for span in spans]
        self._ends = sorted(span.end_us for span in spans)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def last_begin(self, at_us: float) -> float:
        """Return when the last of them to begin did."""
        return self._begins[bisect_right(self._begins, at_us) - 1]

    def contains(self, at_us: float) -> bool:
        """Tell whether one of them is running."""
        return bisect_right(self._begins, at_us) > bisect_right(self._ends, at_us)

    def num_begun(self, at_us: float) -> int:
        """Return how many of them have begun."""
        return bisect_right(self._begins, at_us)

    def num_ended(self, at_us: float) -> int:
        """Return how many of them have ended."""
        return bisect_right(self._ends, at_us)
