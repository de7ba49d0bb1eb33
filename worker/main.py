"""The worker program: takes jobs off the queue, one at a time, until it is told to stop.

``python -m worker`` runs it. It stays one process: what a job runs, an engine's process runs, warm
and under limits, so there is nothing left to fork for (rq forks a process for each task otherwise,
and no engine would stay warm). SIGTERM lets the job at hand end first; a second one does not wait.
"""

from __future__ import annotations

import os
import socket
import sys
from uuid import uuid4

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from memgate.errors import MemgateError
from memgate.jobspec import parse_job_spec
from worker.logs import set_up_logs
from worker.queues import Speed, make_queue, queue_names
from worker.settings import WorkerSettings
from worker.store import JobStore
from worker.tasks import Desk, take_seat
from worker.watchdog import Watchdog

_WARM_UP = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 2,  # its batch norm refuses one
    "iterations": 1,
}


def make_worker(settings: WorkerSettings) -> SimpleWorker:
    """Make a worker on its queues. Payloads are JSON: nothing off the queue is ever unpickled."""
    # Blocking reads wait for work as long as it takes, so there is no socket time-out. A server
    # that is away for a moment is waited for: an answer that was worked out must not be lost.
    connection = Redis.from_url(
        settings.redis_url,
        socket_timeout=None,
        retry=Retry(ExponentialBackoff(cap=2.0, base=0.05), retries=30),
    )
    speeds = [Speed(name.strip()) for name in settings.queues.split(",")]
    queues = [make_queue(name, connection) for name in queue_names(speeds)]
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    return SimpleWorker(queues, name=name, connection=connection, serializer=JSONSerializer)


def main() -> None:
    """Work until told to stop."""
    settings = WorkerSettings.from_environment()
    set_up_logs()
    worker = make_worker(settings)
    store = JobStore(worker.connection, settings)
    desk = Desk(store, settings)
    take_seat(desk)
    watchdog = Watchdog(store, settings)
    try:
        if Speed.SLOW in settings.queues:
            _warm_up(desk)
        watchdog.start()
        worker.work(logging_level="WARNING")
    except RedisError as error:
        sys.exit(f"the queue cannot be reached ({type(error).__name__}); check MEMGATE_REDIS_URL")
    finally:
        desk.close()


def _warm_up(desk: Desk) -> None:
    try:
        desk.answerer.warm_up(parse_job_spec(_WARM_UP))
    except MemgateError as error:  # jobs that need it are told the same; traces need no engine
        sys.stderr.write(f"memgate worker: {error.message}\n")
