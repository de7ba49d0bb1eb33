"""What is decided about a job on a GPU: one ordered enum for every door."""

from __future__ import annotations

from enum import StrEnum


class Decision(StrEnum):
    """Worst first, so that many devices, pods or ranks combine with ``min``.

    Ordered by rank, not by the letters of its values.
    """

    REJECT = "reject"
    """It does not fit."""
    UNKNOWN = "unknown"
    """There is no answer: not yet, or never for this GPU. An estimate never says this."""
    UNCERTAIN = "uncertain"
    """It may fit: the figures lie too close, or something about the run is in doubt."""
    ADMIT = "admit"
    """It fits."""

    @property
    def rank(self) -> int:
        """Its place among the decisions, the worst at 0."""
        return list(Decision).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, Decision) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, Decision) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, Decision) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, Decision) else NotImplemented
