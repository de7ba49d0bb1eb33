"""Clients that wait for jobs: a future each, woken when the queue says that a job is over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from service.errors import ProblemError

#: a message may be lost with the server's connection: look for yourself now and then
_LOOK_SECONDS = 2.0


class Bell:
    """Rings once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake who waits."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, at most for so long, and no longer than it is good not to look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, _LOOK_SECONDS)):
                await self._event.wait()


class Waiters:
    """Everybody who waits, by job."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: defaultdict[str, set[Bell]] = defaultdict(set)
        self.num_waiting = 0

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say where those who wait live."""
        self._loop = loop

    def tell_over(self, job_id: str) -> None:
        """A job is over; called from the thread that listens."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, job_id)

    def _wake(self, job_id: str) -> None:
        for bell in self._waiting.get(job_id, ()):
            bell.ring()

    @contextmanager
    def waiting(self, job_id: str) -> Iterator[Bell]:
        """Hang up a bell that rings when a job is over.

        Raises:
            ProblemError: if too many wait already.
        """
        if self.num_waiting >= self._max_waiting:
            raise ProblemError(
                503,
                f"{self._max_waiting} clients wait already; ask without 'Prefer: wait'",
                code="TOO_MANY_WAITING",
                headers={"Retry-After": "5", "Location": f"/jobs/{job_id}"},
                job=job_id,
            )
        bell = Bell()
        self._waiting[job_id].add(bell)
        self.num_waiting += 1
        try:
            yield bell
        finally:
            self.num_waiting -= 1
            self._waiting[job_id].discard(bell)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
