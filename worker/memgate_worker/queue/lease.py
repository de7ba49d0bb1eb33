"""A worker's lease on its job: a thread renews it, and the work is stopped if it is lost.

A lease that is not renewed expires; ``watchdog`` then gives the job to another worker. One that is
taken away, since the job was canceled or must make room (``referee``), is noticed in a moment. Who
may hold a job, and for how long, is decided in ``scripts``.
"""

from __future__ import annotations

import signal
import threading
import time

from redis.exceptions import RedisError

from memgate_worker.queue.store import JobStore

#: how soon a worker notices that its lease was taken away
_LOOK_SECONDS = 0.2


class LeaseLostError(BaseException):
    """The job was canceled, stopped, or another worker has it: this worker shall not go on.

    Not an ``Exception``: no handler in the work may catch it.
    """


class Lease:
    """Holds a job while a block runs, and interrupts the block if the job is no longer ours.

    The thread that renews the lease sends the main thread a signal, which is handled only inside
    the block. A context manager, to be entered in the main thread.
    """

    def __init__(self, store: JobStore, job_id: str, worker: str, seconds: float) -> None:
        self._store = store
        self._job_id = job_id
        self._worker = worker
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> None:
        signal.signal(signal.SIGUSR1, self._interrupt)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        renew_at = time.monotonic() + self._seconds / 4
        while not self._ended.wait(min(_LOOK_SECONDS, self._seconds / 4)):
            try:
                is_there = self._store.is_held_by(self._job_id, self._worker)
                if is_there and time.monotonic() < renew_at:
                    continue
                is_ours = self._store.hold(self._job_id, self._worker)
            except RedisError:  # the server is away: it will say later whether the job is ours
                continue
            if not is_ours:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return
            renew_at = time.monotonic() + self._seconds / 4

    def _interrupt(self, *_: object) -> None:
        if not self._ended.is_set():
            raise LeaseLostError
