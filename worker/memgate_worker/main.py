"""The worker program: takes jobs off the queue, one at a time, until it is told to stop.

``python -P -m memgate_worker`` runs it. It stays one process: an engine's process runs the jobs,
warm and under limits, so there is no reason to fork (rq otherwise forks for each task, and no
engine would stay warm). SIGTERM lets the current job finish first; a second one does not wait.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from redis.backoff import ExponentialBackoff
from redis.client import Pipeline
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from rq.worker_registration import register

from memgate.errors import MemgateError, SandboxError
from memgate.jobspec import parse_job_spec
from memgate_worker.answers import EngineAnswerer
from memgate_worker.engines.identity import identify_engines
from memgate_worker.health import WORKER_TTL_SECONDS
from memgate_worker.logs import set_up_logs
from memgate_worker.queue.announcements import REFUSED, Announcement, write_announcement
from memgate_worker.queue.connecting import connect
from memgate_worker.queue.queues import Speed, make_queue, queue_names
from memgate_worker.queue.referee import Referee
from memgate_worker.queue.roster import ANNOUNCEMENT
from memgate_worker.queue.store import JobStore
from memgate_worker.queue.watchdog import Watchdog
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME
from memgate_worker.sandbox.policy import choose
from memgate_worker.settings import WorkerSettings
from memgate_worker.tasks import Answerer, JobRunner, use_job_runner

_WARM_UP = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 2,  # its batch norm refuses one
    "iterations": 1,
}


class SteadyWorker(SimpleWorker):
    """A worker that reports in all the time, busy or not, and is forgotten soon after its end.

    rq's own does not while a task runs: its entry is valid for as long as the task may take, a day,
    even if the worker is killed the next moment.
    """

    #: returns what this worker can run; None: it announces nothing
    announce: Callable[[], Announcement] | None = None

    #: rq would wait up to a minute after the server is back
    max_connection_wait_time = 1.0

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Report in for the usual time, whatever rq asks for."""
        del timeout
        super().heartbeat(WORKER_TTL_SECONDS, pipeline)

    def subscribe(self) -> None:
        """Take no commands from the queue: signals are enough, and end us a second sooner."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed to."""

    def register_birth(self) -> None:
        """Sign on, and announce at once what we can run."""
        super().register_birth()  # type: ignore[no-untyped-call]
        self.report_in()

    def report_in(self) -> None:
        """Report in from a separate thread, even after the server has forgotten us.

        Everything is written each time, without asking: an entry that expired while we were paused,
        or the server was away, comes back with rq's next heartbeat, but only as a stub without
        queues or host; and other workers and services remove expired ones from the list.
        """
        if self.birth_date is not None:  # rq refuses to start if there is an entry before that
            self.connection.transaction(self._write_entry, self.key)

    def _write_entry(self, pipeline: Pipeline) -> None:
        """Write our whole entry, unless we have signed off; starts over if rq writes meanwhile."""
        has_signed_off = pipeline.hexists(self.key, "death")
        pipeline.multi()
        if has_signed_off:
            return
        pipeline.hset(self.key, mapping=self.serialize())
        if self.announce is not None:
            pipeline.hset(self.key, ANNOUNCEMENT, write_announcement(self.announce()))
        pipeline.hsetnx(self.key, "state", self.get_state())
        if (execution := self.execution) is not None:
            pipeline.hsetnx(self.key, "current_job", execution.job_id)
        register(self, pipeline)
        self.heartbeat(pipeline=pipeline)


def make_worker(settings: WorkerSettings) -> SteadyWorker:
    """Make a worker on its queues. Payloads are JSON: nothing off the queue is ever unpickled."""
    # A server that is briefly away is waited for: a finished answer must not be lost. rq sets the
    # time-out of the socket to a little more than it waits for work.
    connection = connect(
        settings.redis_url,
        socket_timeout=None,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=30),
    )
    speeds = [Speed(name.strip()) for name in settings.queues.split(",")]
    queues = [make_queue(name, connection) for name in queue_names(speeds)]
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    worker = SteadyWorker(
        queues,
        name=name,
        connection=connection,
        serializer=JSONSerializer,
        worker_ttl=WORKER_TTL_SECONDS,
    )
    worker.announce = partial(make_announcement, settings)
    return worker


def make_announcement(settings: WorkerSettings) -> Announcement:
    """Return what a worker with these settings can run on this machine right now."""
    return Announcement(
        engines=identify_engines(),
        default_runtime=DEFAULT_RUNTIME,
        limits=settings.run_limits,
        sandbox=_find_level(settings),
    )


def _find_level(settings: WorkerSettings) -> str:
    """Return the level of our sandbox; jobs say what is wrong if there can be none."""
    try:
        return choose(settings.sandbox_policy).level.value
    except SandboxError:
        return REFUSED


def main() -> None:
    """Work until told to stop."""
    settings = WorkerSettings.from_environment()
    set_up_logs()
    worker = make_worker(settings)
    answerer = EngineAnswerer(JobStore(worker.connection, settings), settings)
    try:
        if Speed.SLOW in settings.queues:
            _warm_up(answerer)
        work(worker, settings, answerer)
    except RedisError as error:
        sys.exit(f"the queue cannot be reached ({type(error).__name__}); check MEMGATE_REDIS_URL")
    finally:
        answerer.stop_engines()


def work(worker: SteadyWorker, settings: WorkerSettings, answerer: Answerer) -> None:
    """Work until told to stop, and look after the queue meanwhile."""
    store = JobStore(worker.connection, settings)
    use_job_runner(JobRunner(store, settings, answerer))
    Watchdog(store, settings).start()
    Referee(store, settings).start()
    stopped = threading.Event()
    threading.Thread(target=_report_in, args=(worker, stopped), daemon=True).start()
    try:
        worker.work(logging_level="WARNING")
    finally:
        stopped.set()


def _report_in(worker: SteadyWorker, stopped: threading.Event) -> None:
    while not stopped.wait(WORKER_TTL_SECONDS / 4):
        with suppress(RedisError):
            worker.report_in()


def _warm_up(answerer: EngineAnswerer) -> None:
    try:
        answerer.warm_up(parse_job_spec(_WARM_UP))
    except MemgateError as error:  # jobs that need it fail with the same; traces need no engine
        sys.stderr.write(f"memgate worker: {error.message}\n")
        answerer.stop_engines()  # a lost host is not kept
