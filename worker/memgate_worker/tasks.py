"""What a worker does with an id from the queue: take the job, answer it, store the answer.

Only the worker that holds a job's lease works on it, and only the first answer counts, so a job
that is queued twice does no harm. A worker that is lost does not renew its lease (``queue.lease``):
``queue.watchdog`` then gives the job to another.

A decision is stored as soon as it is known. The advice that goes with a rejection, the largest
batch that fits, takes several runs: it is looked for afterwards and added.
"""

from __future__ import annotations

import math
import os
import socket
import time
from secrets import token_hex
from typing import Protocol

import structlog
from redis.exceptions import RedisError
from rq import get_current_job
from rq.timeouts import JobTimeoutException

from memgate.contract import INTERNAL, Failure, JobRecord, UnknownJobError, Work
from memgate.errors import Fault, MemgateError, ProcessLostError, TimeLimitError
from memgate.report import Estimate
from memgate_worker.answers import WorkAnswer
from memgate_worker.engines.identity import identify_work
from memgate_worker.queue.history import note_answer, note_failure
from memgate_worker.queue.lease import Lease, LeaseLostError
from memgate_worker.queue.queues import TASK_TIMEOUT_SECONDS, Speed, speed_of
from memgate_worker.queue.referee import count_places, queue_again
from memgate_worker.queue.store import JobStore
from memgate_worker.settings import WorkerSettings

_log = structlog.get_logger("memgate.worker")

#: how long the number of workers is remembered
_PLACES_SECONDS = 2.0


class Answerer(Protocol):
    """What answers questions: in a worker, an ``EngineAnswerer``."""

    def drop_work(self) -> None:
        """Stop what still runs for a question that was interrupted."""

    def answer(self, work: Work) -> WorkAnswer:
        """Answer a question."""

    def advise(self, work: Work, said: Estimate) -> Estimate | None:
        """Add advice to a rejection; None if there is none."""


class JobRunner:
    """Runs one job after another: takes it, has it answered, stores the answer.

    There is one per process.
    """

    def __init__(self, store: JobStore, settings: WorkerSettings, answerer: Answerer) -> None:
        self._store = store
        self._settings = settings
        self._answerer = answerer
        #: how many workers run jobs, and when they were counted
        self._known_places = (0, -math.inf)
        # Unique to this process: its lease must not be mistaken for that of a namesake.
        self.name = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"

    def run(self, job_id: str, speed: Speed = Speed.SLOW) -> None:
        """Work on a job, unless it has ended, another worker holds it, or it must wait."""
        num_places = self._count_places() if speed is Speed.SLOW else 0
        if not self._store.begin(job_id, self.name, num_places=num_places):
            return
        start = time.perf_counter()
        try:
            record = self._store.read(job_id)
            # before it is answered: a runtime may be installed in the meantime
            made_by = {"identity": identify_work(record.work)}
            outcome = self._work(record.model_copy(update=made_by))
        except LeaseLostError:
            self._drop_work()
            outcome = "stopped"
        except UnknownJobError:
            outcome = "expired"
        finally:
            self._store.release(job_id, self.name)
        seconds = time.perf_counter() - start
        _log.info("job", job=job_id, outcome=outcome, seconds=round(seconds, 3), worker=self.name)

    def _count_places(self) -> int:
        """Return how many workers run jobs, as of a moment ago."""
        now = time.monotonic()
        num_places, counted_at = self._known_places
        if now - counted_at >= _PLACES_SECONDS:
            num_places = max(1, count_places(self._store))
            self._known_places = (num_places, now)
        return num_places

    def _drop_work(self) -> None:
        """Clean up after work that was interrupted."""
        self._answerer.drop_work()
        # We may have been stopped between a command and its answer.
        self._store.redis.connection_pool.disconnect(inuse_connections=False)

    def _lease(self, record: JobRecord) -> Lease:
        return Lease(self._store, record.id, self.name, self._settings.lease_seconds)

    def _work(self, record: JobRecord) -> str:
        """Answer, and store the result; return a word for the log."""
        try:
            with self._lease(record):
                answer = self._answerer.answer(record.work)
        except JobTimeoutException:
            self._drop_work()
            return self._fail(record, _took_too_long())
        except ProcessLostError as error:
            return self._try_again(record, error)
        except MemgateError as error:
            return self._fail(record, error)
        except RedisError:  # says nothing about the job: the watchdog will find it
            raise
        except Exception as error:
            # Ours, and unknown: the caller is told, and rq's registry of failures has the details.
            message = f"memgate failed: {type(error).__name__}"
            unknown = Failure(code=INTERNAL, message=message, fault=Fault.PASSING)
            self._store.fail(record.id, unknown)
            note_failure(self._store, record, unknown)
            raise
        return self._publish(record, answer)

    def _publish(self, record: JobRecord, answer: WorkAnswer) -> str:
        """Store an answer, then any advice; return a word for the log."""
        if answer.view is not None:
            self._store.save_view(record.id, answer.view.model_dump_json())
        result = answer.result.model_dump_json()
        is_first = self._store.finish(
            record.id,
            result,
            identity=record.identity,
            with_advice_to_come=answer.wants_advice,
        )
        if not is_first:
            return "too late"
        self._count(record, answer)
        if answer.wants_advice and isinstance(answer.result, Estimate):
            self._advise(record, answer.result)
        return "done"

    def _advise(self, record: JobRecord, said: Estimate) -> None:
        """Look for advice, and add it to the answer, which stands whatever happens here."""
        advised: Estimate | None = None
        try:
            with self._lease(record):
                advised = self._answerer.advise(record.work, said)
        except LeaseLostError:  # the answer was dropped in the meantime
            self._drop_work()
        except Exception as error:
            _log.warning("advice", job=record.id, error=str(error), exc_info=_unforeseen(error))
        result = None if advised is None else advised.model_dump_json()
        self._store.add_advice(record.id, self.name, result)

    def _count(self, record: JobRecord, answer: WorkAnswer) -> None:
        self._store.count("jobs", f"{record.kind}:done")
        said = answer.result
        note_answer(self._store, record, said)
        if not isinstance(said, Estimate):
            return
        gpu = record.work.gpu.name if record.work.gpu else None
        self._store.count("verdicts", f"{said.decision}:{gpu or 'described'}")
        seconds = {stage: said.timings_ms[stage] / 1000 for stage in ("trace", "replay")}
        if record.started_at is not None:
            seconds["queue"] = (record.started_at - record.created_at).total_seconds()
        for stage, value in seconds.items():
            label = f"{said.engine}:{stage}"
            self._store.count("stage_seconds", label, value)
            self._store.count("stage_jobs", label)

    def _try_again(self, record: JobRecord, error: MemgateError) -> str:
        self._store.count("lost", "process")
        if record.attempts >= self._settings.max_attempts:
            return self._fail(record, error)
        self._store.release(record.id, self.name)
        queue_again(self._store, record.id)
        return "again"

    def _fail(self, record: JobRecord, error: MemgateError) -> str:
        failed = Failure.of(error)
        exceeded = self._settings.run_limits.exceeded_by(error)
        self._store.fail(record.id, failed, identity=record.identity, exceeded=exceeded)
        note_failure(self._store, record, failed)
        return error.code


def _took_too_long() -> TimeLimitError:
    hours = TASK_TIMEOUT_SECONDS / 3600
    return TimeLimitError(
        f"answering this took longer than {hours:g} hours, the queue's limit on one question, which"
        " is memgate's and not the job's fault; ask about a smaller job, or GPU by GPU"
    )


def _unforeseen(error: Exception) -> Exception | None:
    """Return an unforeseen error, whose traceback somebody will need."""
    return None if isinstance(error, MemgateError | RedisError) else error


#: rq calls ``run`` by name, so it must find the runner of the process
_runner: JobRunner | None = None


def use_job_runner(runner: JobRunner) -> None:
    """Set the runner that rq's calls in this process go to."""
    global _runner
    _runner = runner


def run(job_id: str) -> None:
    """Run a job; called by rq."""
    assert _runner is not None, "a worker says what runs its jobs before it takes one"
    task = get_current_job()
    _runner.run(job_id, Speed.SLOW if task is None else speed_of(task.origin))
