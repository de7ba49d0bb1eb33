"""Questions that were answered from memory -> the store, a moment later and many at once.

So such an answer costs no way to the store. This process knows these questions at once; another
service does so after ``SETTLE_SECONDS``. Those of the last moment are lost if the process is
killed: the answer was given, and only its id leads nowhere.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio.to_thread
from prometheus_client import Counter

from memgate.contract import JobRecord, UnknownJobError
from memgate_worker.queue.client import AskedQuestion, QueueClient, QueueError

#: how long questions are collected
_EVERY_SECONDS = 0.05
#: how long it takes until every service knows a question
SETTLE_SECONDS = 0.25

#: what waits while the store is away; then the oldest are dropped
_MAX_WAITING = 20_000
_BATCH = 500
_PAUSE_SECONDS = 0.5


class Asked:
    """The questions that callers asked: those in the store, and those on their way there."""

    def __init__(self, queue: QueueClient, num_dropped: Counter) -> None:
        self._queue = queue
        self._num_dropped = num_dropped
        self._waiting: dict[str, AskedQuestion] = {}
        self._has_some = asyncio.Event()

    def add(self, question: AskedQuestion) -> None:
        """Keep a question that has its answer."""
        if len(self._waiting) >= _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._num_dropped.inc()
        self._waiting[question.id] = question
        self._has_some.set()

    def find(self, question_id: str) -> AskedQuestion:
        """Return a question.

        Raises:
            UnknownJobError: if there is none.
        """
        found = self._waiting.get(question_id) or self._queue.questions.find(question_id)
        if found is None:
            raise UnknownJobError(f"there is no job {question_id!r}; it may have expired")
        return found

    def read(self, question_id: str) -> JobRecord:
        """Return a question in its current state.

        Raises:
            UnknownJobError: if there is none.
        """
        return self._queue.questions.view(self.find(question_id))

    def withdraw(self, question_id: str) -> JobRecord:
        """Withdraw a question unless it is answered; return it as it is then.

        Raises:
            UnknownJobError: if there is none.
        """
        question = self.find(question_id)
        self._queue.questions.withdraw(question)
        return self.read(question_id)

    async def read_soon(self, question_id: str) -> JobRecord:
        """Return a question in its current state, though another service has just answered it.

        Raises:
            UnknownJobError: if there is none.
        """
        try:
            return await anyio.to_thread.run_sync(self.read, question_id)
        except UnknownJobError:
            await asyncio.sleep(SETTLE_SECONDS)
            return await anyio.to_thread.run_sync(self.read, question_id)

    async def keep_storing(self) -> None:
        """Store what was asked, while the service runs."""
        while True:
            await self._has_some.wait()
            await asyncio.sleep(_EVERY_SECONDS)
            self._has_some.clear()
            try:
                await self.flush()
            except QueueError:  # it may be back at the next try
                self._has_some.set()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def flush(self) -> None:
        """Store what was asked so far."""
        while self._waiting:
            known = list(self._waiting.values())
            for first in range(0, len(known), _BATCH):
                batch = known[first : first + _BATCH]
                await anyio.to_thread.run_sync(self._queue.questions.keep, batch)
                for question in batch:
                    self._waiting.pop(question.id, None)

    async def stop(self) -> None:
        """Store what is left."""
        with suppress(QueueError):
            await self.flush()
