"""Is a worker on this machine alive? ``python -P -m memgate_worker.health`` in a container."""

from __future__ import annotations

import socket
import sys
from datetime import UTC, datetime, timedelta

from redis.exceptions import RedisError
from rq import Worker
from rq.serializers import JSONSerializer

from memgate_worker.queue.connecting import connect
from memgate_worker.queue.settings import QueueSettings

#: how long a worker is remembered after reporting in; it does so four times in that time
WORKER_TTL_SECONDS = 40

MAX_SILENCE = timedelta(seconds=WORKER_TTL_SECONDS)


def worker_is_alive(redis_url: str, *, now: datetime) -> bool:
    """Say whether a worker of this host reported in lately."""
    connection = connect(redis_url, socket_connect_timeout=2, socket_timeout=2)
    workers = Worker.all(connection=connection, serializer=JSONSerializer)
    return any(
        worker.hostname == socket.gethostname()
        and worker.last_heartbeat is not None
        and now - worker.last_heartbeat.replace(tzinfo=UTC) < MAX_SILENCE
        for worker in workers
    )


def main() -> None:
    """Exit 0 if a worker of this host is alive, otherwise 1."""
    try:
        alive = worker_is_alive(QueueSettings.from_environment().redis_url, now=datetime.now(UTC))
    except RedisError as error:
        sys.exit(f"the queue cannot be reached: {type(error).__name__}")
    sys.exit(None if alive else "no worker of this host reported in lately")


if __name__ == "__main__":
    main()
