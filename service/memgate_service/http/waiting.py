"""Clients that wait for jobs: an event each, set when the queue says that there is news of a job.

A job has news when it is finished, and again when advice was added to its answer.

That message may be lost with the server's connection, so one task checks now and then for all
waiting clients. If each checked for itself, sixty would delay all other answers by half a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio.to_thread

from memgate_service.http.errors import ProblemError
from memgate_worker.queue.client import QueueClient, QueueError

_LOOK_SECONDS = 2.0

#: how long clients may still wait once the service is told to stop
_STOP_SECONDS = 5.0


class Bell:
    """Rings when there is news."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiting client."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, or has rung since the last time; at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()


class Waiters:
    """All waiting clients, by job."""

    def __init__(self, max_waiting: int, max_waiting_each: int) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_each = max_waiting_each
        #: by whose share they take
        self._callers: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: defaultdict[str, set[Bell]] = defaultdict(set)
        self.num_waiting = 0
        #: no client waits any longer: the service is stopping
        self.is_stopped = False

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop in which clients wait."""
        self._loop = loop

    def notify(self, job_id: str) -> None:
        """Wake the clients of a job that has news; called from the thread that listens."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, job_id)

    def _wake(self, job_id: str) -> None:
        for bell in self._waiting.get(job_id, ()):
            bell.ring()

    def stop(self) -> None:
        """Let waiting clients end soon; called when the program gets a signal."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.call_later, _STOP_SECONDS, self._end)

    def _end(self) -> None:
        self.is_stopped = True
        for job_id in self._waiting:
            self._wake(job_id)

    async def keep_looking(self, queue: QueueClient) -> None:
        """Check now and then which jobs are finished, while the service runs."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._waiting:
                continue
            with suppress(QueueError):  # it may be back at the next check
                for job_id in await anyio.to_thread.run_sync(queue.finished, list(self._waiting)):
                    self._wake(job_id)

    def callers(self) -> dict[str, int]:
        """Return how many clients wait, by whose share they take."""
        return dict(self._callers)

    @contextmanager
    def waiting(self, job_id: str, caller: str = "", *, question_id: str = "") -> Iterator[Bell]:
        """Yield a bell that rings when there is news of a job.

        Args:
            job_id: the job's, as the queue calls it.
            caller: whose share it takes, if that is known.
            question_id: what the caller calls it.

        Raises:
            ProblemError: if too many are already waiting, or too many of the same caller.
        """
        if self.num_waiting >= self._max_waiting:
            raise _refusal(503, f"{self._max_waiting} clients are already waiting", question_id)
        if caller and self._callers[caller] >= self._max_waiting_each:
            who = f"{self._max_waiting_each} clients of {caller} are already waiting"
            raise _refusal(429, who, question_id)
        bell = Bell()
        self._waiting[job_id].add(bell)
        self.num_waiting += 1
        self._callers[caller] += 1
        try:
            yield bell
        finally:
            self.num_waiting -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            self._waiting[job_id].discard(bell)
            if not self._waiting[job_id]:
                del self._waiting[job_id]


def _refusal(status: int, why: str, question_id: str) -> ProblemError:
    return ProblemError(
        status,
        f"{why}; ask without 'Prefer: wait'",
        code="TOO_MANY_WAITING",
        headers={"Retry-After": "5", "Location": f"/jobs/{question_id}"},
        job=question_id,
    )
