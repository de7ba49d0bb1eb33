"""The log of decisions -> the page of it that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from memgate_worker.queue.client import HistoryEntry

PAGE_SIZE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to search for; empty fields match everything."""

    outcome: str = ""
    kind: str = ""
    gpu: str = ""
    text: str = ""
    #: include what pages asked on their own
    with_advice: bool = False

    @property
    def is_plain(self) -> bool:
        """Nothing is searched for: the newest are shown."""
        return self == Query()

    def matches(self, decision: HistoryEntry) -> bool:
        """Say whether a decision matches the search."""
        if decision.is_advice and not self.with_advice:
            return False
        wanted = ((self.outcome, decision.outcome), (self.kind, decision.kind))
        if any(want and want != has for want, has in wanted):
            return False
        if self.gpu and self.gpu != decision.gpu:
            return False
        return all(word in _words(decision) for word in self.text.lower().split())

    def link(self, offset: int) -> str:
        """Return the link to a page of the results."""
        given = {
            "outcome": self.outcome,
            "kind": self.kind,
            "gpu": self.gpu,
            "q": self.text,
            "advice": "1" if self.with_advice else "",
            "offset": str(offset) if offset else "",
        }
        asked = urlencode({name: value for name, value in given.items() if value})
        return f"/?{asked}#decisions" if asked else "/#decisions"


def _words(decision: HistoryEntry) -> str:
    named = (decision.subject, decision.gpu, decision.message, decision.job, decision.engine)
    batch = f"batch {decision.batch_size}" if decision.batch_size else ""
    return " ".join([*named, batch]).lower()


def find_decisions(
    history: Iterable[HistoryEntry], query: Query, offset: int = 0
) -> tuple[list[HistoryEntry], bool]:
    """Return a page of the matches, the newest first, and whether there are more.

    Only as much of the history is read as necessary.
    """
    # Compared by content: the log may grow, and shift, between two reads.
    found: dict[tuple[str, float], HistoryEntry] = {}
    for one in history:
        if query.matches(one):
            found[one.job, one.at] = one
        if len(found) > offset + PAGE_SIZE:
            break
    page = list(found.values())[offset : offset + PAGE_SIZE]
    return page, len(found) > offset + PAGE_SIZE
