"""Decisions of the webhooks -> events in the cluster, a moment later: no answer waits for them.

While the API server is away, events wait; the oldest are dropped. The same news about the same
object is told once a minute: clients that are refused retry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import anyio.to_thread
from cachetools import TTLCache

from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, ObjectEvent
from memgate_worker.logs import write_line

_MAX_WAITING = 1000
_EVERY_SECONDS = 0.5
_REPEAT_SECONDS = 60.0


class EventSender:
    """Events that are not recorded yet."""

    def __init__(self, connect: Callable[[], Cluster], *, is_on: bool) -> None:
        self.is_on = is_on
        self._connect = connect
        self._cluster: Cluster | None = None
        self._waiting: deque[ObjectEvent] = deque(maxlen=_MAX_WAITING)
        self._told: TTLCache[tuple[str, ...], bool] = TTLCache(10_000, _REPEAT_SECONDS)

    def add(self, event: ObjectEvent | None) -> None:
        """Have an event recorded soon, unless the same was a moment ago."""
        if event is None or not self.is_on:
            return
        same = (event.namespace, event.kind, event.about, event.uid, event.reason)
        if same not in self._told:
            self._told[same] = True
            self._waiting.append(event)

    async def keep_sending(self) -> None:
        """Record events while the service runs."""
        while self.is_on:
            await asyncio.sleep(_EVERY_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Record what waits; if the API server is away, it is tried again later."""
        while self._waiting:
            event = self._waiting[0]
            try:
                await anyio.to_thread.run_sync(self._send, event)
            except ClusterError as error:
                if error.status == 0:
                    return
                write_line("event", {**event._asdict(), "error": error.message})
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()

    def _send(self, event: ObjectEvent) -> None:
        if self._cluster is None:
            self._cluster = self._connect()
        self._cluster.record_event(event)
