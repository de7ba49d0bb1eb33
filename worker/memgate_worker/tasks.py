"""What a worker does with an id off the queue: take the job, answer it, store the answer.

Only the worker that holds a job's lease may be at it, and only the first answer counts, so being
told of a job twice does no harm. A lease runs out when nobody renews it: ``watchdog`` then gives
the job to somebody else.

A decision is stored as soon as it is known. The advice that goes with a rejection, the largest
batch that fits, takes several runs: it is looked for afterwards and added.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from secrets import token_hex
from typing import Protocol

import structlog
from redis.exceptions import RedisError
from rq.timeouts import JobTimeoutException

from memgate.contract import INTERNAL, Failure, JobRecord, UnknownJobError, Work
from memgate.errors import Fault, MemgateError, ProcessLostError, TimeLimitError
from memgate.report import Estimate
from memgate_worker.answers import WorkAnswer
from memgate_worker.engines.identity import identify_work
from memgate_worker.queue.history import note_answer, note_failure
from memgate_worker.queue.queues import TASK_TIMEOUT_SECONDS, Speed, enqueue
from memgate_worker.queue.store import JobStore
from memgate_worker.settings import WorkerSettings

_log = structlog.get_logger("memgate.worker")


class _StopWorkError(BaseException):
    """Nobody wants the answer any more. No ``Exception``: no handler on the way may catch it."""


class Answers(Protocol):
    """What a desk needs of an ``Answerer``."""

    def stop_engines(self) -> None:
        """Stop the engines' processes; they are started again when they are needed."""

    def answer(self, work: Work) -> WorkAnswer:
        """Answer a question."""

    def advise(self, work: Work, said: Estimate) -> Estimate | None:
        """Add advice to a rejection; None if there is none."""


class Desk:
    """Where a worker works: what answers, and the store. There is one in a process."""

    def __init__(self, store: JobStore, settings: WorkerSettings, answerer: Answers) -> None:
        self._store = store
        self._settings = settings
        self._answerer = answerer
        # Of one process, ever: a lease must not be taken for that of a namesake.
        self.name = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"

    def run(self, job_id: str) -> None:
        """Work on a job, unless it is over or somebody else's."""
        if not self._store.begin(job_id, self.name):
            return
        start = time.perf_counter()
        try:
            record = self._store.read(job_id)
            # before it is answered: a runtime may be installed meanwhile
            made_by = {"identity": identify_work(record.work)}
            outcome = self._work(record.model_copy(update=made_by))
        except _StopWorkError:
            self._drop_work()
            outcome = "stopped"
        except UnknownJobError:
            outcome = "expired"
        finally:
            self._store.release(job_id, self.name)
        seconds = time.perf_counter() - start
        _log.info("job", job=job_id, outcome=outcome, seconds=round(seconds, 3), worker=self.name)

    def _drop_work(self) -> None:
        """Clean up after work that was stopped in the middle."""
        self._answerer.stop_engines()  # what runs in an engine is of no use
        # We may have been stopped between a command and its answer.
        self._store.redis.connection_pool.disconnect(inuse_connections=False)

    def _lease(self, record: JobRecord) -> _Lease:
        return _Lease(self._store, record.id, self.name, self._settings.lease_seconds)

    def _work(self, record: JobRecord) -> str:
        """Answer, and store what comes of it; tell what that was."""
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
        except RedisError:  # no word on the job: whoever finds it lost begins anew
            raise
        except Exception as error:
            # Ours, and unknown: the caller hears of it, and rq's registry of failures has it all.
            message = f"memgate failed: {type(error).__name__}"
            unknown = Failure(code=INTERNAL, message=message, fault=Fault.PASSING)
            self._store.fail(record.id, unknown)
            note_failure(self._store, record, unknown)
            raise
        return self._publish(record, answer)

    def _publish(self, record: JobRecord, answer: WorkAnswer) -> str:
        """Store an answer, then what advice there is; tell what came of it."""
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
        except _StopWorkError:  # the answer was forgotten meanwhile
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
        enqueue(self._store.redis, record.id, Speed.SLOW, record.priority)
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
    """Return an error whose traceback somebody will need: one that nobody foresaw."""
    return None if isinstance(error, MemgateError | RedisError) else error


class _Lease:
    """Holds a job while a block runs, and ends the block if the job is not ours any more.

    A thread renews; what is to be ended is what the main thread does, so it is sent a signal. It is
    heard inside the block only.
    """

    def __init__(self, store: JobStore, job_id: str, worker: str, seconds: float) -> None:
        self._store = store
        self._job_id = job_id
        self._worker = worker
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> None:
        signal.signal(signal.SIGUSR1, self._stop_work)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._over.wait(self._seconds / 4):
            try:
                is_ours = self._store.hold(self._job_id, self._worker)
            except RedisError:  # the server is away: it says later whether the job is ours
                continue
            if not is_ours:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    def _stop_work(self, *_: object) -> None:
        if not self._over.is_set():
            raise _StopWorkError


#: rq calls ``run`` by name, so the desk of the process has to be found from there
_desk: Desk | None = None


def take_seat(desk: Desk) -> None:
    """Make a desk the one of this process."""
    global _desk
    _desk = desk


def run(job_id: str) -> None:
    """Called by rq."""
    assert _desk is not None, "a worker takes its seat before it works"
    _desk.run(job_id)
