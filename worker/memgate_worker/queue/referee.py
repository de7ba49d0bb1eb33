"""Sees to it that no caller has all places for runs while another waits.

A place is a worker that runs jobs. A worker parks a job that would take the last free place for a
caller that has a run already (``scripts.BEGIN``). Where there is only one place, or others have all
of them, whoever waits for more than a moment gets one: a run is stopped and queued again, the
longest of the caller that has most (``scripts.MAKE_ROOM``).

Every worker and every service has a referee; one of them is active.
"""

from __future__ import annotations

import threading
from secrets import token_hex
from typing import Any

import structlog
from redis.exceptions import RedisError

from memgate.contract import UnknownJobError
from memgate_worker.queue import scripts
from memgate_worker.queue.blobs import redis_key
from memgate_worker.queue.leases import PARKED, RUNNING
from memgate_worker.queue.queues import Speed, enqueue, make_queue, queue_names
from memgate_worker.queue.roster import read_roster
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.store import FINISHED_CHANNEL, JobStore

_log = structlog.get_logger("memgate.referee")

#: how long a caller without a run waits for a place before another's run is stopped
_PATIENCE_SECONDS = 0.2

#: a run that has just begun is not stopped: most end soon, and would have to be done again
_LEAST_RUN_SECONDS = 1.0

#: how often the run of one question is stopped
_MAX_STOPS = 2

#: how many waiting tasks of a queue are looked at: callers take turns, so the first ones are many's
_NUM_LOOKED_AT = 64


def count_places(store: JobStore) -> int:
    """Return how many workers run jobs, by what they have reported lately."""
    return sum(Speed.SLOW in worker.speeds for worker in read_roster(store.redis))


def queue_again(store: JobStore, job_id: str) -> None:
    """Have a job that was taken out of the queue wait in it for its caller's turn."""
    try:
        record = store.read(job_id)
    except UnknownJobError:  # it has expired
        return
    if record.state.is_open:
        enqueue(store.redis, job_id, Speed.SLOW, record.priority, store.caller_of(job_id))


class Referee:
    """A thread that looks again and again who waits for whom."""

    def __init__(self, store: JobStore, settings: QueueSettings) -> None:
        self._store = store
        self._settings = settings
        self._name = token_hex(8)
        self._stopped = threading.Event()
        redis: Any = store.redis
        self._unpark = redis.register_script(scripts.UNPARK)
        self._make_room = redis.register_script(scripts.MAKE_ROOM)
        #: the job that waited for a place at the last look
        self._waiting = ""
        self._thread = threading.Thread(target=self._watch, name="referee", daemon=True)

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        seconds = _PATIENCE_SECONDS
        while not self._stopped.wait(seconds):
            try:
                is_active = self._store.lead(self._name, "referee")
                if is_active:
                    self.look(count_places(self._store))
            except RedisError as error:
                is_active = False
                _log.warning("referee", error=type(error).__name__)
            # the others only see whether the active one is lost
            seconds = _PATIENCE_SECONDS if is_active else self._settings.lease_seconds / 4

    def look(self, num_places: int) -> None:
        """Look once: unpark what may have a place; make room for who waited last time, too."""
        prefixes = [redis_key("job", ""), redis_key("lease", "")]
        for job_id in self._unpark(keys=[RUNNING, PARKED], args=[*prefixes, num_places]):
            queue_again(self._store, job_id.decode())
        redis = self._store.redis
        queues = [make_queue(name, redis).key for name in queue_names([Speed.SLOW])]
        made = self._make_room(
            keys=[RUNNING, FINISHED_CHANNEL, *queues],
            args=[
                *(*prefixes, num_places),
                *(self._waiting, int(_LEAST_RUN_SECONDS * 1000), _MAX_STOPS, _NUM_LOOKED_AT),
            ],
        )
        self._waiting, stopped, caller = (one.decode() for one in made)
        if stopped:
            queue_again(self._store, stopped)
            self._store.count("stops", "room")
            _log.info("stopped", job=stopped, caller=caller, waiting=self._waiting)
