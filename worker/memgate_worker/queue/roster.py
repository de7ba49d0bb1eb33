"""rq's register of workers -> which there are, what each is doing, and what each can run.

Two reads, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import Redis
from rq.worker_registration import REDIS_WORKER_KEYS

from memgate_worker.queue.announcements import Serving, read_announcement

#: of our ids, with which the ids of rq's tasks begin
_ID_LENGTH = 32

#: our own field of rq's entry for a worker
ANNOUNCEMENT = "memgate_announcement"

_FIELDS = ("hostname", "pid", "queues", "state", "current_job", "successful_job_count", "birth")


class WorkerSeen(NamedTuple):
    """A worker that has reported in lately."""

    name: str
    host: str
    pid: str
    #: ``fast``, ``slow`` or both
    speeds: tuple[str, ...]
    is_busy: bool
    #: id of the job it is working on
    job: str | None
    num_done: int
    born_at: str


def read_roster(redis: Redis) -> list[WorkerSeen]:
    """Return all workers, by host and process."""
    seen = [
        _worker(key, fields)
        for key, fields in _read_entries(redis, _FIELDS).items()
        if fields[0] is not None  # its entry has expired, and rq has not noticed yet
    ]
    return sorted(seen, key=lambda worker: (worker.host, worker.speeds, worker.pid))


def read_serving(redis: Redis) -> Serving:
    """Return what all workers together can run."""
    found = [
        read_announcement(written) for (written,) in _read_entries(redis, [ANNOUNCEMENT]).values()
    ]
    return Serving(announcement for announcement in found if announcement is not None)


def _read_entries(redis: Redis, fields: Sequence[str]) -> dict[str, list[bytes | None]]:
    """Return some fields of each worker's entry, by its key."""
    client: Any = redis  # redis-py types each answer as one that may have to be awaited
    keys = [key.decode() for key in sorted(client.smembers(REDIS_WORKER_KEYS))]
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(key, fields)
        return dict(zip(keys, pipeline.execute(), strict=True))


def _worker(key: str, fields: list[bytes | None]) -> WorkerSeen:
    host, pid, queues, state, job, done, birth = ((value or b"").decode() for value in fields)
    return WorkerSeen(
        name=key.rpartition(":")[2],
        host=host,
        pid=pid,
        speeds=tuple(sorted({name.split("-")[1] for name in queues.split(",") if "-" in name})),
        is_busy=state == "busy",
        job=job[:_ID_LENGTH] or None,
        num_done=int(done or 0),
        born_at=birth,
    )
