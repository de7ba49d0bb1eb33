"""What Prometheus sees: counts of this process, and counts in the store for all processes.

Every name is explained in docs/operations.md. Figures from the store are the same whichever service
is asked: a query takes their maximum over the services, not their sum.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from memgate.contract import INTERNAL, WorkKind
from memgate.errors import Fault, SimulationError
from memgate.version import __version__
from memgate_service.http.waiting import Waiters
from memgate_worker.queue.client import QueueClient, QueueError, sum_up_rest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

#: counters that all programs keep in the store: name there, name here, labels, meaning
_COUNTERS = {
    "jobs": (
        "memgate_jobs",
        ("kind", "outcome"),
        "Jobs that have ended: done, or whose fault it is that there is no answer.",
    ),
    "failures": ("memgate_job_failures", ("code",), "Jobs without an answer, by the error's code."),
    "verdicts": ("memgate_verdicts", ("decision", "gpu"), "Estimates, by decision and GPU."),
    "lost": (
        "memgate_workers_lost",
        ("what",),
        "Deaths during a job: of a worker, or of the process in which it ran the job.",
    ),
    "stops": (
        "memgate_runs_stopped",
        ("why",),
        "Runs that were stopped and queued again: room for a caller that had no run.",
    ),
    "timelines": (
        "memgate_timeline_lookups",
        ("found",),
        "Runs looked up before they are made: yes if there is an earlier one.",
    ),
    "decisions": (
        "memgate_decisions",
        ("gate", "place", "decision", "mode", "done"),
        "Decisions of gates, by partition or namespace; undescribed jobs are among them.",
    ),
    "outcomes": (
        "memgate_outcomes",
        ("decision", "result"),
        "Finished jobs that were reported: within the bound, beyond it, or out of memory.",
    ),
}

#: shown from the start, with a count of 0: an alarm cannot see an increase that starts at 1
_SHOWN_AT_ZERO = {
    "jobs": [f"{kind}:{outcome}" for kind in WorkKind for outcome in ("done", *Fault)],
    "failures": [INTERNAL, SimulationError.code],
}

#: the same for pairs of a sum and a count: names there, name here, labels, meaning
_SUMMARIES = {
    ("stage_seconds", "stage_jobs"): (
        "memgate_stage_duration_seconds",
        ("engine", "stage"),
        "Time of estimates: waiting in the queue, tracing, replaying.",
    ),
    ("error_ratio", "error_count"): (
        "memgate_estimate_error_ratio",
        ("decision",),
        "How far predicted peaks were from reported ones, as a share of the reported one.",
    ),
}


#: how many callers are told apart; each is a series that Prometheus keeps
_MAX_CALLERS = 50


class Metrics:
    """The registry of one service."""

    def __init__(self, queue: QueueClient, waiters: Waiters) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "memgate_requests",
            "Requests that were answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "memgate_request_duration_seconds",
            "Time to answer a request, waiting included.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.cache_lookups = Counter(
            "memgate_cache_lookups",
            "Questions, by where their answer was found: memory, store or nowhere.",
            ("found",),
            registry=self.registry,
        )
        self.admissions = Counter(
            "memgate_admissions",
            "Kubernetes objects with our annotation: what is known, and whether they got in.",
            ("outcome", "allowed"),
            registry=self.registry,
        )
        self.waiting = Gauge(
            "memgate_waiting_clients", "Clients that wait for a job.", registry=self.registry
        )
        self.questions_dropped = Counter(
            "memgate_questions_dropped",
            "Questions answered from memory whose ids were not kept: the store was away too long.",
            registry=self.registry,
        )
        build = Info("memgate_build", "What is running.", registry=self.registry)
        build.info({"version": __version__, "python": platform.python_version()})
        ProcessCollector(registry=self.registry)
        self.registry.register(_StoreCollector(queue, waiters))
        #: looking a child up by its labels costs more than counting
        self._of_request: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def note_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        key = (method, route, status)
        children = self._of_request.get(key)
        if children is None:
            count = self.requests.labels(method, route, str(status))
            children = self._of_request[key] = (count, self.request_seconds.labels(route))
        children[0].inc()
        children[1].observe(seconds)

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self.registry)


class _StoreCollector:
    """Asks the store when Prometheus asks us."""

    def __init__(self, queue: QueueClient, waiters: Waiters) -> None:
        self._queue = queue
        self._waiters = waiters

    def collect(self) -> Iterator[Metric]:
        """Return what is known now; an unreachable store is a figure, too."""
        up = GaugeMetricFamily("memgate_queue_up", "Whether the queue can be reached.")
        try:
            found = [*self._gauges(), *_counted(self._queue.counters())]
        except QueueError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from found

    def _gauges(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("memgate_queue_depth", "Jobs that wait.", labels=["queue"])
        for name, count in self._queue.depths().items():
            depth.add_metric([name], count)
        yield depth
        yield GaugeMetricFamily(
            "memgate_open_jobs", "Jobs that have not ended.", self._queue.num_open()
        )
        yield GaugeMetricFamily(
            "memgate_queue_oldest_age_seconds",
            "How long the oldest job that has not ended has waited.",
            self._queue.oldest_age_seconds(),
        )
        yield from self._shares()
        yield GaugeMetricFamily(
            "memgate_workers", "Workers that run jobs and reported in.", self._queue.num_workers()
        )

    def _shares(self) -> Iterator[Metric]:
        """Return who uses what; those who use least are one."""
        shares = self._queue.shares()
        found = {
            "open_jobs": ("Jobs that have not ended.", shares.open_jobs),
            "waiting_clients": ("Clients that wait.", self._waiters.callers()),
            "stored_bytes": ("Size of the uploads that are kept.", shares.stored_bytes),
        }
        for name, (text, numbers) in found.items():
            gauge = GaugeMetricFamily(f"memgate_caller_{name}", text, labels=["caller"])
            for caller, number in sum_up_rest(numbers, _MAX_CALLERS).items():
                gauge.add_metric([caller or "unknown"], number)
            yield gauge


def _counted(counters: dict[str, float]) -> Iterator[Metric]:
    by_name: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, labels in _SHOWN_AT_ZERO.items():
        by_name[name] = dict.fromkeys(labels, 0.0)
    for key, value in counters.items():
        name, _, label = key.partition("/")
        by_name[name][label] = value
    for name, (here, label_names, text) in _COUNTERS.items():
        counter = CounterMetricFamily(here, text, labels=label_names)
        for label, value in by_name[name].items():
            counter.add_metric(label.split(":"), value)
        yield counter
    for (sums, counts), (here, label_names, text) in _SUMMARIES.items():
        summary = SummaryMetricFamily(here, text, labels=label_names)
        for label, count in by_name[counts].items():
            summary.add_metric(label.split(":"), int(count), by_name[sums].get(label, 0.0))
        yield summary
