"""The store -> what the overview shows, read at most once a second however many watch."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from memgate.contract import JobRecord
from memgate.errors import Fault
from memgate_service.dashboard.decisions import Query, find_decisions
from memgate_service.dashboard.figures import CHARTED, Figures, chart_rows, sum_up
from memgate_service.dashboard.rendering import (
    render_part,
    write_percent,
    write_seconds,
    write_size,
)
from memgate_worker.queue.client import (
    MINUTES_KEPT,
    HistoryEntry,
    QueueClient,
    WorkerSeen,
    describe_subject,
)

_MAX_AGE_SECONDS = 1.0

#: parts that show others' questions
OTHERS_PARTS = frozenset({"workers", "decisions", "callers"})

#: how many callers are shown
_MAX_CALLERS = 20

#: the period over which latencies are shown
_LATENCY_MINUTES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker, and what it is doing."""

    worker: WorkerSeen
    #: what it is doing, in words
    doing: str
    #: the first question about that
    question: str
    busy_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerRow:
    """A caller, and what it uses."""

    name: str
    open_jobs: int
    running: int
    #: clients of this service
    waiting_clients: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What is shown: texts by the name of their place, rows of the chart, and parts of the page."""

    texts: dict[str, str]
    rows: list[list[int]]
    now_minute: int
    parts: dict[str, str]
    #: the workers, without what they are doing
    plain_workers: str
    #: there are more decisions than the newest ones that are shown
    has_more: bool

    def sections(self) -> dict[str, str]:
        """Return what browsers are sent when it changes, as JSON; of the chart the last minutes."""
        recent = [row for row in self.rows if row[0] >= self.now_minute - 1]
        chart = {"now": self.now_minute, "rows": recent}
        return {
            "texts": json.dumps(self.texts),
            "chart": json.dumps(chart),
            **{name: json.dumps(html) for name, html in self.parts.items()},
        }


class OverviewReader:
    """Reads the store; remembers what can no longer change."""

    def __init__(
        self,
        queue: QueueClient,
        clock: Callable[[], float] = time.time,
        read_waiting: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._queue = queue
        self._read_waiting = read_waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._minutes: dict[int, dict[str, int]] = {}
        self._read_until = 0
        self._seen: Overview | None = None
        self._seen_at = 0.0
        self.num_reads = 0

    def read(self) -> Overview:
        """Return what to show; it is read again only if it is older than a second."""
        with self._lock:
            now = self._clock()
            if self._seen is None or now - self._seen_at >= _MAX_AGE_SECONDS:
                self._seen = self._read(now)
                self._seen_at = now
            return self._seen

    def _read(self, now: float) -> Overview:
        self.num_reads += 1
        minute = int(now) // 60
        self._read_minutes(minute)
        day = sum_up(self._minutes.values())
        hour = sum_up(
            counts for at, counts in self._minutes.items() if at > minute - _LATENCY_MINUTES
        )
        workers = self._read_workers()
        decisions, has_more = find_decisions(self._queue.history(), Query())
        return Overview(
            texts=_texts(day, self._queue, workers),
            rows=chart_rows(self._minutes),
            now_minute=minute,
            has_more=has_more,
            plain_workers=_render_workers([_hide_work(row) for row in workers], now),
            parts={
                "workers": _render_workers(workers, now),
                "callers": render_part("parts/callers.html", callers=self._read_callers()),
                "engines": render_part("parts/engines.html", engines=hour.engines),
                "decisions": render_decisions(decisions),
            },
        )

    def _read_minutes(self, minute: int) -> None:
        """Read the minutes since the last time, and the last one again for what came late."""
        first = max(minute - MINUTES_KEPT + 1, self._read_until - 1)
        wanted = range(first, minute + 1)
        for at, counts in zip(wanted, self._queue.minutes(wanted), strict=True):
            if counts:
                self._minutes[at] = counts
        for at in [at for at in self._minutes if at <= minute - MINUTES_KEPT]:
            del self._minutes[at]
        self._read_until = minute

    def _read_workers(self) -> list[WorkerRow]:
        roster = self._queue.roster()
        at_work = [worker.job for worker in roster if worker.is_busy and worker.job]
        records = {record.id: record for record in self._queue.read_many(at_work)}
        return [_row(worker, records.get(worker.job or "")) for worker in roster]

    def _read_callers(self) -> list[CallerRow]:
        """Return who uses most: first those with most open jobs."""
        shares, waiting = self._queue.shares(), self._read_waiting()
        names = {**shares.open_jobs, **waiting, **shares.stored_bytes}
        rows = [
            CallerRow(
                name=self._name(caller),
                open_jobs=shares.open_jobs.get(caller, 0),
                running=shares.running.get(caller, 0),
                waiting_clients=waiting.get(caller, 0),
                stored_bytes=shares.stored_bytes.get(caller, 0),
            )
            for caller in names
        ]
        rows.sort(key=lambda row: (-row.open_jobs, -row.waiting_clients, -row.stored_bytes))
        return rows[:_MAX_CALLERS]

    def _name(self, caller: str) -> str:
        """Return a caller's name for a person: a key's has a name of its own."""
        kind, _, key_id = caller.partition(" ")
        key = self._queue.keys.find(key_id) if kind == "key" else None
        return f"{caller} ({key.name})" if key else caller or "without a key"


def _render_workers(workers: list[WorkerRow], now: float) -> str:
    return render_part("parts/workers.html", workers=workers, now=now)


def _hide_work(row: WorkerRow) -> WorkerRow:
    return replace(row, doing="", question="")


def render_decisions(decisions: list[HistoryEntry], *, is_search: bool = False) -> str:
    """Make the rows of the table of decisions."""
    return render_part("parts/decisions.html", decisions=decisions, is_search=is_search)


def _row(worker: WorkerSeen, record: JobRecord | None) -> WorkerRow:
    if not worker.is_busy or record is None:
        return WorkerRow(worker=worker, doing="", question="", busy_since=None)
    gpu = record.work.gpu.name if record.work.gpu else None
    batch = f", batch {record.work.job.batch_size:,}" if record.work.job else ""
    place = f" on {gpu}" if gpu else ""
    doing = f"{record.kind}: {describe_subject(record)}{batch}{place}"
    return WorkerRow(
        worker=worker, doing=doing, question=record.question, busy_since=record.started_at
    )


def _texts(day: Figures, queue: QueueClient, workers: list[WorkerRow]) -> dict[str, str]:
    busy = sum(row.worker.is_busy for row in workers)
    open_jobs = queue.num_open()
    depths = queue.depths()
    waiting = sum(depths.values())
    fast = sum(count for name, count in depths.items() if "-fast-" in name)
    texts = {
        "saved": write_size(day.saved_bytes),
        "saved-mean": write_size(day.saved_mean_bytes),
        "verdicts": f"{day.num_verdicts:,}",
        "waiting": f"{waiting:,}",
        "waiting-fast": f"{fast:,}",
        "waiting-slow": f"{waiting - fast:,}",
        "open": f"{open_jobs:,}",
        "age": write_seconds(queue.oldest_age_seconds()) if open_jobs else "-",
        "workers": f"{len(workers):,}",
        "busy": f"{busy:,}",
        "hits": write_percent(day.hit_share, 0),
        "as-of": datetime.now(UTC).isoformat(timespec="minutes"),
    }
    for decision in CHARTED:
        texts[decision.value] = f"{day.outcomes.get(decision, 0):,}"
        texts[f"{decision}-share"] = write_percent(day.share(decision), 0)
    for fault in Fault:
        texts[f"fault-{fault}"] = f"{day.outcomes.get(fault, 0):,}"
    for name in ("memory", "store", "nowhere"):
        texts[f"cache-{name}"] = f"{day.cache.get(name, 0):,}"
    for name in ("known", "made"):
        texts[f"runs-{name}"] = f"{day.runs.get(name, 0):,}"
    return texts
