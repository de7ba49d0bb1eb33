"""Decisions of our own gates -> the log and the audit; those without an answer are followed up.

A webhook does not wait for the audit: records are stored a moment later, by one task. What was let
in without an answer is judged again once there is one. Both are lost if the process is killed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import anyio.to_thread

from memgate.audit import AuditEntry
from memgate.errors import MemgateError
from memgate_worker.logs import write_line
from memgate_worker.queue.client import QueueClient, QueueError

#: records that wait while the store is away; then the oldest are dropped
_MAX_WAITING = 20_000
_BATCH = 500
_EVERY_SECONDS = 0.5

#: objects that are followed up at the same time, and for how long each
_MAX_FOLLOWED = 500
FOLLOW_SECONDS = 600.0
_LONGEST_PAUSE_SECONDS = 30.0


def log_decision(entry: AuditEntry) -> None:
    """Write a decision into the log."""
    write_line("decision", entry.model_dump(exclude_defaults=True))


class Decisions:
    """What this process has decided and not stored yet, and what it still looks at."""

    def __init__(self, queue: QueueClient) -> None:
        self._queue = queue
        self._waiting: deque[AuditEntry] = deque(maxlen=_MAX_WAITING)
        self._followed: set[asyncio.Task[None]] = set()

    def add(self, record: dict[str, Any]) -> None:
        """Record a decision; an empty record is none."""
        if not record:
            return
        entry = AuditEntry.model_validate({"id": uuid4().hex, "at": time.time()} | record)
        log_decision(entry)
        self._waiting.append(entry)

    def follow_up(self, look: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Look now and then until there is something to record."""
        if len(self._followed) >= _MAX_FOLLOWED:
            return
        task = asyncio.create_task(self._follow(look))
        self._followed.add(task)
        task.add_done_callback(self._followed.discard)

    async def _follow(self, look: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        deadline, pause = time.monotonic() + FOLLOW_SECONDS, 0.5
        while time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            with suppress(QueueError, MemgateError):
                if record := await look():
                    self.add(record)
                    return

    async def keep_storing(self) -> None:
        """Store what was decided, while the service runs."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            with suppress(QueueError):  # it may be back at the next try
                await self.flush()

    async def flush(self) -> None:
        """Store what was decided so far."""
        while self._waiting:
            batch = [self._waiting[number] for number in range(min(_BATCH, len(self._waiting)))]
            await anyio.to_thread.run_sync(self._queue.audit.add, batch)
            for _ in batch:
                self._waiting.popleft()

    async def stop(self) -> None:
        """Store what is left, and stop looking."""
        for task in self._followed:
            task.cancel()
        with suppress(QueueError):
            await self.flush()
