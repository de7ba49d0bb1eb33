"""Decisions about measured runs, and what happened -> how often each went with each.

What is counted is the verdict that the product gives: admit, uncertain or reject. A replay that
happens to survive at some size is not one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from memgate.capacity import MemoryNeeds
from memgate.decision import Decision
from memgate.verdict import MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCounts:
    """How many runs were decided each way, and lived or died."""

    admit_lived: int = 0
    admit_died: int = 0
    uncertain_lived: int = 0
    uncertain_died: int = 0
    reject_lived: int = 0
    reject_died: int = 0

    @property
    def total(self) -> int:
        """Of all runs."""
        return self.right + self.wrong + self.uncertain

    @property
    def right(self) -> int:
        """Admitted and lived, or rejected and died."""
        return self.admit_lived + self.reject_died

    @property
    def wrong(self) -> int:
        """Admitted and died, or rejected and lived."""
        return self.admit_died + self.reject_lived

    @property
    def uncertain(self) -> int:
        """Not decided."""
        return self.uncertain_lived + self.uncertain_died


def count_verdicts(said: Iterable[tuple[Decision, bool]]) -> VerdictCounts:
    """Count decisions, each with whether the run died."""
    counts: dict[str, int] = {}
    for decision, died in said:
        name = f"{decision.value}_{'died' if died else 'lived'}"
        counts[name] = counts.get(name, 0) + 1
    return VerdictCounts(**counts)


def decide_under_cap(needs: MemoryNeeds, cap_bytes: int, *, has_doubts: bool = False) -> Decision:
    """Decide whether a job lives with its allocator limited to a size.

    The limit is on segments alone, so the context has no part in it: what is left of the bound is
    its margin. With doubts no job is admitted, as everywhere.
    """
    died = bool(needs.run_in(cap_bytes).ooms)
    required = needs.least_bytes(died_at_bytes=cap_bytes if died else 0)
    if required > cap_bytes:
        return Decision.REJECT
    fits = ceil(required * (1 + MARGIN)) <= cap_bytes and not has_doubts
    return Decision.ADMIT if fits else Decision.UNCERTAIN
