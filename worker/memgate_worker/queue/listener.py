"""Hears which jobs have finished: the service wakes whoever waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from memgate_worker.queue.connecting import connect
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.store import FINISHED_CHANNEL

#: how often a listener looks whether it shall stop, and whether a lost server is back
_LOOK_SECONDS = 0.5


class Listener:
    """Listens for finished jobs, on a separate thread."""

    def __init__(self, settings: QueueSettings, on_finished: Callable[[str], None]) -> None:
        self._url = settings.redis_url
        self._on_finished = on_finished
        self._stopped = threading.Event()
        #: what is said here is for this listener alone
        self._own_channel = f"{FINISHED_CHANNEL}:{uuid4().hex}"
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopped.set()
        with suppress(RedisError), self._connect(socket_timeout=_LOOK_SECONDS) as redis:
            redis.publish(self._own_channel, b"stop")  # it need not wait until it looks again
        self._thread.join()

    def _connect(self, **options: Any) -> Redis:
        # A lost connection is opened again at once; where that fails, stop() must not wait long.
        return connect(self._url, retry=Retry(NoBackoff(), 1), **options)

    def _listen(self) -> None:
        while not self._stopped.is_set():
            with suppress(RedisError):  # the server is away: waiting callers check for themselves
                self._hear()
            self._stopped.wait(_LOOK_SECONDS)

    def _hear(self) -> None:
        with self._connect(socket_timeout=None) as redis, redis.pubsub() as channel:
            channel.subscribe(FINISHED_CHANNEL, self._own_channel)
            while not self._stopped.is_set():
                message = channel.get_message(ignore_subscribe_messages=True, timeout=_LOOK_SECONDS)
                if message is not None and not self._stopped.is_set():
                    self._on_finished(message["data"].decode())
