"""How often this process had an answer cached -> the store, which adds up all processes.

Answering from memory must cost next to nothing, so hits are counted in the process and written to
the store every few seconds.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio.to_thread

from memgate_service.http.metrics import Metrics
from memgate_worker.queue.client import QueueClient, QueueError

_WRITE_SECONDS = 5.0


class CacheCounter:
    """Cache lookups that were counted and not written yet."""

    def __init__(self, metrics: Metrics, queue: QueueClient) -> None:
        self._metrics = metrics
        self._queue = queue
        self._written: dict[str, int] = {}

    def write(self) -> None:
        """Write the counts since the last write."""
        counted = {
            sample.labels["found"]: int(sample.value)
            for metric in self._metrics.cache_lookups.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }
        grown = {
            f"cache:{found}": count - self._written.get(found, 0)
            for found, count in counted.items()
            if count > self._written.get(found, 0)
        }
        if grown:
            self._queue.count_now(grown)
            self._written = counted

    async def run(self) -> None:
        """Write every few seconds while the service runs."""
        while True:
            await asyncio.sleep(_WRITE_SECONDS)
            with suppress(QueueError):  # what is not written now is written later
                await anyio.to_thread.run_sync(self.write)
