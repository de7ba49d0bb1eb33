"""Looking for decisions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from memgate_service.dashboard.decisions import PAGE_SIZE, Query, find_decisions
from memgate_worker.queue.history import HistoryEntry, read_history


def _decision(number: int = 0, **fields: Any) -> HistoryEntry:
    known: dict[str, Any] = {
        "job": f"{number:032x}",
        "at": 0.0,
        "kind": "estimate",
        "outcome": "admit",
        "subject": "resnet50",
        "message": "needs 3.26 GiB",
        "gpu": "rtx-3060",
        "batch_size": 32,
    }
    return msgspec.convert(known | fields, HistoryEntry)


class _Log:
    """A store that has a log, the newest first."""

    def __init__(self, decisions: list[HistoryEntry]) -> None:
        self._decisions = decisions
        self.num_reads = 0

    def decisions(self, first: int, count: int) -> list[bytes]:
        """Return a piece of it."""
        self.num_reads += 1
        return [msgspec.json.encode(one) for one in self._decisions[first : first + count]]


@pytest.mark.parametrize(
    ("query", "want"),
    [
        (Query(), True),
        (Query(outcome="admit", gpu="rtx-3060", kind="estimate"), True),
        (Query(outcome="reject"), False),
        (Query(kind="fit"), False),
        (Query(gpu="a10g"), False),
        (Query(text="RESNET batch"), True),
        (Query(text="resnet gpt"), False),
    ],
)
def test_a_decision_is_found_by_all_that_is_said(query: Query, want: bool) -> None:
    """Every word and every field has to match; letters' case does not."""
    assert query.matches(_decision()) is want


def test_what_pages_asked_is_found_on_demand() -> None:
    """Else one look at a page would hide what callers asked."""
    assert not Query().matches(_decision(is_advice=True))
    assert Query(with_advice=True).matches(_decision(is_advice=True))


def test_pages_of_decisions_do_not_read_more_than_they_need() -> None:
    """The first page of what is not filtered is one read, however long the log."""
    log: Any = _Log([_decision(number) for number in range(20_000)])

    page, has_more = find_decisions(read_history(log), Query())
    second, _ = find_decisions(read_history(log), Query(), offset=PAGE_SIZE)

    assert log.num_reads == 2
    assert has_more
    assert [int(one.job, 16) for one in page + second] == list(range(2 * PAGE_SIZE))


def test_a_rare_decision_is_found_however_old() -> None:
    """The whole log is looked through; where there is no more, it says so."""
    log: Any = _Log([_decision(number) for number in range(3_000)])
    log._decisions[2_999] = _decision(2_999, outcome="reject")

    page, has_more = find_decisions(read_history(log), Query(outcome="reject"))

    assert [int(one.job, 16) for one in page] == [2_999]
    assert not has_more


def test_a_link_says_what_is_looked_for() -> None:
    """Nothing more than is needed."""
    assert Query().link(0) == "/#decisions"
    assert Query(text="a b", with_advice=True).link(25) == "/?q=a+b&advice=1&offset=25#decisions"
