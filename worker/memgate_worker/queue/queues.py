"""The queues of rq, and what is put on them: an id, as JSON. What it stands for is in the store.

Fast work replays what is known; slow work runs jobs. Each has a queue for each priority.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from uuid import uuid4

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from memgate.contract import Priority

#: what rq calls, by name: the service never imports it
_TASK = "memgate_worker.tasks.run"

#: rq's own limit on a task: only for what our own limits do not cover
TASK_TIMEOUT_SECONDS = 24 * 3600


class Speed(StrEnum):
    """How long work takes."""

    FAST = "fast"
    SLOW = "slow"


def queue_names(speeds: Iterable[Speed]) -> list[str]:
    """Return the queues of a worker, in the order in which it looks at them."""
    return [_name(speed, priority) for speed in speeds for priority in Priority]


def _name(speed: Speed, priority: Priority) -> str:
    return f"memgate-{speed}-{priority}"


def make_queue(name: str, connection: Redis) -> Queue:
    """Open a queue. Nothing on it is ever unpickled."""
    return Queue(name, connection=connection, serializer=JSONSerializer)


def enqueue(connection: Redis, job_id: str, speed: Speed, priority: Priority) -> None:
    """Have a worker take a job. Doing so twice is harmless: the second finds nothing to do."""
    make_queue(_name(speed, priority), connection).enqueue(
        _TASK,
        job_id,
        # Unlike ours, rq's ids are used once. They begin with ours, see scripts.ORPHANED.
        job_id=f"{job_id}-{uuid4().hex}",
        job_timeout=TASK_TIMEOUT_SECONDS,
        result_ttl=0,
        failure_ttl=3600,
    )


def queue_keys(connection: Redis) -> list[str]:
    """Return the names of the lists in which tasks wait."""
    return [make_queue(name, connection).key for name in queue_names(Speed)]


def queue_depths(connection: Redis) -> dict[str, int]:
    """Return how many wait in each queue."""
    return {name: make_queue(name, connection).count for name in queue_names(Speed)}
