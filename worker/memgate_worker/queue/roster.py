"""What rq knows of its workers -> who is there, and what each is doing. Two reads, however many."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import Redis
from rq.worker_registration import REDIS_WORKER_KEYS

#: of our ids, with which those of rq's tasks begin
_ID_LENGTH = 32

_FIELDS = ("hostname", "pid", "queues", "state", "current_job", "successful_job_count", "birth")


class WorkerSeen(NamedTuple):
    """A worker that has reported in lately."""

    name: str
    host: str
    pid: str
    #: ``fast``, ``slow`` or both
    speeds: tuple[str, ...]
    is_busy: bool
    #: id of the job it is at
    job: str | None
    num_done: int
    born_at: str


def read_roster(redis: Redis) -> list[WorkerSeen]:
    """Return all workers, by host and process."""
    client: Any = redis  # redis-py types each answer as one that may have to be awaited
    keys = sorted(client.smembers(REDIS_WORKER_KEYS))
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(key, _FIELDS)
        found = pipeline.execute()
    seen = [
        _worker(key.decode(), fields)
        for key, fields in zip(keys, found, strict=True)
        if fields[0] is not None  # else it is long gone, and rq has not noticed yet
    ]
    return sorted(seen, key=lambda worker: (worker.host, worker.speeds, worker.pid))


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
