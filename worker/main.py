"""The worker program: takes jobs off the queue, one process each, until it is told to stop.

``python -m worker`` runs it. No job exists yet: engines bring them. rq handles SIGTERM by finishing
the job at hand.
"""

from __future__ import annotations

import os
import socket
import sys
from uuid import uuid4

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from worker.settings import QueueSettings

QUEUE_NAME = "memgate"


def make_worker(redis_url: str) -> Worker:
    """Make a worker on the queue. Payloads are JSON: nothing off the queue is ever unpickled."""
    # Blocking reads wait for work as long as it takes, so there is no socket time-out.
    connection = Redis.from_url(redis_url, socket_timeout=None)
    queue = Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    return Worker([queue], name=name, connection=connection, serializer=JSONSerializer)


def main() -> None:
    """Work until told to stop."""
    settings = QueueSettings.from_environment()
    try:
        make_worker(str(settings.redis_url)).work()
    except RedisError as error:
        sys.exit(f"the queue cannot be reached ({type(error).__name__}); check MEMGATE_REDIS_URL")
