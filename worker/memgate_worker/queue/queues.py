"""The queues of rq, and what is put on them: an id, as JSON. What it stands for is in the store.

Fast work replays what is known; slow work runs jobs. Each has a queue for each priority. In a queue
callers take turns: one that asks a thousand questions delays another's by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.client import Pipeline
from rq import Queue
from rq.serializers import JSONSerializer

from memgate.contract import Priority
from memgate_worker.queue import scripts

#: what rq calls, by name: the service never imports it
_TASK = "memgate_worker.tasks.run"

#: rq's own limit on a task: only for what our own limits do not cover
TASK_TIMEOUT_SECONDS = 24 * 3600


#: how long turns are remembered while nobody asks; longer than any task waits
_TURNS_SECONDS = 7 * 24 * 3600


class Speed(StrEnum):
    """How long work takes."""

    FAST = "fast"
    SLOW = "slow"


def queue_names(speeds: Iterable[Speed]) -> list[str]:
    """Return the queues of a worker, in the order in which it looks at them."""
    return [_name(speed, priority) for speed in speeds for priority in Priority]


def _name(speed: Speed, priority: Priority) -> str:
    return f"memgate-{speed}-{priority}"


def speed_of(queue_name: str) -> Speed:
    """Return what kind of work a queue is for."""
    return Speed(queue_name.split("-")[1])


class _TurnQueue(Queue):
    """A queue in which callers take turns."""

    #: who asks; set before anything is put on it
    caller = ""

    def push_job_id(
        self, job_id: str, pipeline: Pipeline | None = None, at_front: bool = False
    ) -> None:
        """Put a task where its caller's turn is."""
        assert not at_front, "everybody takes turns"
        connection: Any = self.connection if pipeline is None else pipeline
        keys = [self.key, f"memgate:turns:{self.name}", f"memgate:callers:{self.name}"]
        connection.eval(scripts.TAKE_TURN, len(keys), *keys, job_id, self.caller, _TURNS_SECONDS)


def make_queue(name: str, connection: Redis) -> _TurnQueue:
    """Open a queue. Nothing on it is ever unpickled."""
    return _TurnQueue(name, connection=connection, serializer=JSONSerializer)


def enqueue(
    connection: Redis, job_id: str, speed: Speed, priority: Priority, caller: str = ""
) -> None:
    """Have a worker take a job. Doing so twice is harmless: the second finds nothing to do."""
    queue = make_queue(_name(speed, priority), connection)
    queue.caller = caller
    queue.enqueue(
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
