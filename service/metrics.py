"""What Prometheus sees: counts of this process, and what the store counts for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from worker.client import QueueClient, QueueError

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

#: counters that workers keep in the store: name there, name here, labels, what it counts
_SHARED = {
    "jobs": ("memgate_jobs", ("kind", "outcome"), "Jobs that are over."),
    "verdicts": ("memgate_verdicts", ("decision", "gpu"), "Estimates, by decision and GPU."),
    "lost": ("memgate_lost", ("what",), "Workers and processes lost over jobs."),
    "stage_seconds": (
        "memgate_stage_seconds",
        ("engine", "stage"),
        "Time spent on jobs, by engine and stage.",
    ),
    "stage_jobs": ("memgate_stage_jobs", ("engine", "stage"), "Jobs that went through a stage."),
    "timelines": ("memgate_timeline_lookups", ("found",), "Runs looked up before they are made."),
}


class Metrics:
    """The registry of one service."""

    def __init__(self, queue: QueueClient) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "memgate_requests",
            "Requests that were answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "memgate_request_seconds",
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
        self.waiting = Gauge(
            "memgate_waiting_clients", "Clients that wait for a job.", registry=self.registry
        )
        self.registry.register(_StoreCollector(queue))

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self.registry)


class _StoreCollector:
    """Asks the store when Prometheus asks us."""

    def __init__(self, queue: QueueClient) -> None:
        self._queue = queue

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return what is known now; that the store is away is a figure, too."""
        up = GaugeMetricFamily("memgate_queue_up", "Whether the queue can be reached.")
        try:
            found = list(self._ask())
        except QueueError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from found

    def _ask(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        depth = GaugeMetricFamily("memgate_queue_depth", "Jobs that wait.", labels=["queue"])
        for name, count in self._queue.depths().items():
            depth.add_metric([name], count)
        yield depth
        yield GaugeMetricFamily(
            "memgate_open_jobs", "Jobs that are not over.", self._queue.store.num_open()
        )
        yield GaugeMetricFamily(
            "memgate_queue_oldest_age_seconds",
            "For how long the oldest job that is not over has waited.",
            self._queue.oldest_age_seconds(),
        )
        families = {
            name: CounterMetricFamily(here, text, labels=list(labels))
            for name, (here, labels, text) in _SHARED.items()
        }
        for key, value in self._queue.store.counters().items():
            name, _, label = key.partition("/")
            if name in families:
                families[name].add_metric(label.split(":"), value)
        yield from families.values()
