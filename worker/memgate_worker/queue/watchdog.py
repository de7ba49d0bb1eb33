"""Finds orphaned jobs and queues them again: after a worker, a queue entry or a server was lost.

An open job is either in a queue or held by a worker. One that is neither, for longer than half a
lease, is orphaned, whatever the reason. Every worker and every service has a watchdog, so there is
one while anything runs; one of them is active, and another takes over if it is lost. One rescue too
many does no harm: only one worker can hold a job.
"""

from __future__ import annotations

import threading
import time
from secrets import token_hex

import structlog
from redis.exceptions import RedisError

from memgate.contract import Failure, UnknownJobError
from memgate.errors import Fault
from memgate_worker.queue.history import note_failure
from memgate_worker.queue.queues import Speed, enqueue, queue_keys
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.store import JobStore

_log = structlog.get_logger("memgate.watchdog")


class Watchdog:
    """A thread that looks for orphaned jobs again and again."""

    def __init__(self, store: JobStore, settings: QueueSettings) -> None:
        self._store = store
        self._settings = settings
        self._name = token_hex(8)
        self._stopped = threading.Event()
        #: jobs that were orphaned at the last look, and since when
        self._orphaned: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start looking now and then."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._settings.lease_seconds / 4):
            try:
                if self._store.lead(self._name):
                    self.sweep(time.monotonic())
                else:
                    self._orphaned.clear()
            except RedisError as error:  # it will come back, or the probes report it
                # Workers could not renew their leases in the meantime; they need a moment to do so.
                self._orphaned.clear()
                _log.warning("watchdog", error=type(error).__name__)

    def sweep(self, now: float) -> int:
        """Look once; return how many jobs were queued again or failed."""
        orphaned = self._store.orphaned(queue_keys(self._store.redis))
        # On its way to a worker a job is briefly in neither, so it must stay that way for a while.
        self._orphaned = {job_id: self._orphaned.get(job_id, now) for job_id in orphaned}
        lost = [
            job_id
            for job_id, since in self._orphaned.items()
            if now - since >= self._settings.lease_seconds / 2
        ]
        return sum(self._rescue(job_id) for job_id in lost)

    def _rescue(self, job_id: str) -> bool:
        del self._orphaned[job_id]
        try:
            record = self._store.read(job_id)
        except UnknownJobError:
            self._store.forget_open(job_id)
            return False
        if not record.state.is_open or not self._store.claim_rescue(job_id):
            return False
        self._store.count("lost", "worker")
        if record.attempts >= self._settings.max_attempts:
            message = f"{record.attempts} workers were lost on this job"
            error = Failure(code="WORKERS_LOST", message=message, fault=Fault.PASSING)
            note_failure(self._store, record, error)
            return self._store.fail(job_id, error)
        caller = self._store.caller_of(job_id)
        enqueue(self._store.redis, job_id, Speed.SLOW, record.priority, caller)
        _log.info("rescued", job=job_id, attempts=record.attempts)
        return True
