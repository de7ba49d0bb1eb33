"""How long memgate itself was at work while a command waited for it: no part of the job's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the time in which at least one thread is at work."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._num_at_work = 0
        self._began_at = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """So far, with what is going on now."""
        with self._lock:
            return self._seconds + (self._now() - self._began_at if self._num_at_work else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of what is done meanwhile, once if several do so."""
        with self._lock:
            if not self._num_at_work:
                self._began_at = self._now()
            self._num_at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_at_work -= 1
                if not self._num_at_work:
                    self._seconds += self._now() - self._began_at
