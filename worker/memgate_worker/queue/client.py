"""The queue's door: what the service may ask of it, and the types of the answers.

Imports no torch and runs no job. Apart from this, the service imports only ``keys`` (who may ask)
and ``settings`` from this package.
"""

from __future__ import annotations

import builtins
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import BinaryIO

from redis import Redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError
from redis.retry import Retry

from memgate.contract import (
    Asker,
    JobRecord,
    Priority,
    Work,
    WorkKind,
)
from memgate.owner import Owner
from memgate.run_key import RunKey
from memgate_worker.queue.announcements import REFUSED, Serving
from memgate_worker.queue.audit_log import AuditLog
from memgate_worker.queue.blobs import redis_key
from memgate_worker.queue.connecting import NoReplicasError, StoreDiskError, connect
from memgate_worker.queue.history import (
    HistoryEntry,
    JobOutcome,
    describe_question,
    describe_subject,
    read_history,
    step_seconds,
)
from memgate_worker.queue.keys import KeyRing
from memgate_worker.queue.listener import Listener
from memgate_worker.queue.memory import ServerMemory
from memgate_worker.queue.outcomes import MeasuredOutcome
from memgate_worker.queue.question import AskedQuestion, make_question_id
from memgate_worker.queue.questions import Questions
from memgate_worker.queue.queues import Speed, enqueue, queue_depths
from memgate_worker.queue.referee import Referee
from memgate_worker.queue.replication import Replication, confirm
from memgate_worker.queue.roster import WorkerSeen, read_roster, read_serving
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.store import MINUTES_KEPT, JobStore
from memgate_worker.queue.usage import CallerShares, read_shares, sum_up_rest
from memgate_worker.queue.watchdog import Watchdog

__all__ = [
    "MINUTES_KEPT",
    "AskedQuestion",
    "AuditLog",
    "CallerShares",
    "HistoryEntry",
    "JobOutcome",
    "Listener",
    "MeasuredOutcome",
    "NoReplicasError",
    "QueueClient",
    "QueueError",
    "Replication",
    "ServerMemory",
    "StoreDiskError",
    "StoreFullError",
    "WorkerSeen",
    "describe_question",
    "describe_subject",
    "make_question_id",
    "step_seconds",
    "sum_up_rest",
]

#: what every call may raise: the queue cannot be reached
QueueError = RedisError

#: and this: its memory is used up
StoreFullError = OutOfMemoryError

#: short, since the caller is waiting; long enough for a server that is being restarted
_TIMEOUT_SECONDS = 2.0
_NUM_RETRIES = 4

#: how long a server may take to say that it is there
_PROBE_SECONDS = 0.5

#: how long what workers announce is cached
_SERVING_SECONDS = 1.0


class QueueClient:
    """A connection to the queue, opened when it is first used."""

    def __init__(self, settings: QueueSettings) -> None:
        self._redis: Redis = connect(
            settings.redis_url,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            retry=Retry(ExponentialBackoff(cap=0.4, base=0.05), _NUM_RETRIES),
        )
        #: for whoever asks whether all is well: an answer at once, or none
        self._probe: Redis = connect(
            settings.redis_url,
            socket_connect_timeout=_PROBE_SECONDS,
            socket_timeout=_PROBE_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self.store = JobStore(self._redis, settings)
        #: the API keys that are valid
        self.keys = KeyRing(self.store)
        #: what callers asked, each with its own id
        self.questions = Questions(self.store, settings)
        #: what gates decided
        self.audit = AuditLog(self._redis, settings)
        self._settings = settings
        #: and when it was read
        self._known_serving = (Serving(), -math.inf)

    def make_watchdog(self) -> Watchdog:
        """Make a thread that looks for orphaned jobs once it is started."""
        return Watchdog(self.store, self._settings)

    def make_referee(self) -> Referee:
        """Make a thread that sees to it, once it is started, that no caller has all places."""
        return Referee(self.store, self._settings)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        self._probe.close()

    def unreachable_because(self) -> str | None:
        """Return why the queue cannot be reached, None if it can. Never shows the password."""
        try:
            self._probe.ping()
        except StoreDiskError:  # even that is refused then; ``memory`` says so
            return None
        except RedisError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def replication(self) -> Replication:
        """Return what the server says about its replicas."""
        return Replication.read(self._probe)

    def memory(self) -> ServerMemory:
        """Return how much memory the server may take, and what it does with it."""
        return ServerMemory.read(self._probe)

    def submit(
        self,
        work: Work,
        priority: Priority = Priority.NORMAL,
        asked_by: Asker = Asker.CALLER,
        caller: str = "",
        question: AskedQuestion | None = None,
    ) -> JobRecord:
        """Have a question answered; return its run, which may have been asked for before.

        ``caller`` is whose share it takes of what workers do, if that is known; ``question`` is
        kept with it, see ``ask``.

        What is stored counts only if it was made by what workers announce now, or if there are no
        workers: known answers are given while workers are away.

        Raises:
            NotConfirmedError: if too few replicas have it; whoever asks again is not asking twice.
            QueueFullError: if too much is waiting.
        """
        job_id = work.id()
        served = self._serving().find(work)
        for _ in range(2):
            if self.store.create(job_id, work, priority, asked_by, served, caller, question):
                enqueue(self._redis, job_id, self._speed(work), priority, caller)
            if (record := self.store.find(job_id)) is not None:
                if work.trace is not None:
                    self.store.keep_upload(work.trace, job_id)
                self._confirm(record, question)
                return record
            self.store.discard(job_id)  # an older version's, which cannot be read
        return self.store.read(job_id)

    def _confirm(self, record: JobRecord, question: AskedQuestion | None) -> None:
        """See to it that what is accepted is not lost with the server."""
        num_replicas = self._settings.num_replicas
        if not num_replicas or not record.state.is_open:
            return
        keys = [redis_key("job", record.id)]
        if question is not None:
            keys.append(redis_key("question", question.id))
        if record.work.trace is not None:
            keys.append(redis_key("trace", record.work.trace))
        confirm(self._redis, keys, num_replicas)

    def ask(
        self,
        work: Work,
        owner: Owner,
        priority: Priority = Priority.NORMAL,
        asked_by: Asker = Asker.CALLER,
        question_id: str = "",
    ) -> JobRecord:
        """Ask a question for somebody; it has its own id, and shares its run with others like it.

        With a ``question_id`` it is asked again, instead of being another question.

        Raises:
            QueueFullError: if too much is waiting.
        """
        at = datetime.now(UTC).timestamp()
        question = AskedQuestion.of(work.id(), work.kind, at, owner, asked_by, id=question_id)
        run = self.submit(work, priority, asked_by, owner.caller, question)
        return question.view(run, self._settings.public_url)

    def save_trace(self, upload: bytes | BinaryIO, caller: str = "") -> str:
        """Keep a trace that a caller's question is about; return the digest that names it.

        Raises:
            QueueFullError: if too much is waiting.
        """
        self.store.refuse_if_full()
        return self.store.save_trace(upload, caller)

    def needs_run(self, work: Work) -> bool:
        """Return whether a question must wait for a run; otherwise a known run is replayed."""
        return self._speed(work) is Speed.SLOW

    def identities(self) -> frozenset[str]:
        """Return the digests of everything that workers announce; none if there are no workers."""
        return self._serving().identities

    def sandboxes(self) -> tuple[str, ...]:
        """Return the levels of the workers' sandboxes, each once; a moment old at the most."""
        return self._serving().sandboxes

    def lacks_sandbox(self) -> bool:
        """Say whether a worker runs no jobs, for want of the sandbox that its operator demands."""
        return REFUSED in self.sandboxes()

    def missing_runtime(self) -> str | None:
        """Return the runtime for jobs that name none, if there are workers and none has it."""
        return read_serving(self._probe).missing_runtime

    def _serving(self) -> Serving:
        """Return what workers announced a moment ago."""
        now = time.monotonic()
        serving, read_at = self._known_serving
        if now - read_at >= _SERVING_SECONDS:
            serving = read_serving(self._redis)
            self._known_serving = (serving, now)
        return serving

    def _speed(self, work: Work) -> Speed:
        """Work is fast if it needs no run: its timeline is stored."""
        if work.kind is not WorkKind.ESTIMATE or work.job is None:
            return Speed.SLOW
        gpu = work.target.gpu
        keys = [
            RunKey.of(work.job, gpu, engine=work.engine, made_by=made_by)
            for made_by in self._serving().find(work).engines
        ]
        is_known = any(self.store.has_timeline(key.digest()) for key in keys)
        return Speed.FAST if is_known else Speed.SLOW

    def read(self, job_id: str) -> JobRecord:
        """Return a run. Raises UnknownJobError."""
        return self.store.read(job_id)

    def find_run(self, work: Work) -> JobRecord | None:
        """Return the run that answers a question, None if nobody has asked it."""
        return self.store.find(work.id())

    def finished(self, job_ids: Sequence[str]) -> builtins.list[str]:
        """Return which of these jobs are finished, or no longer exist."""
        states = self.store.states(job_ids)
        pairs = zip(job_ids, states, strict=True)
        return [job_id for job_id, state in pairs if state is None or not state.is_open]

    def cancel(self, job_id: str) -> JobRecord:
        """Cancel a run unless it is finished, whoever wants it.

        Raises:
            UnknownJobError: if there is no such run.
        """
        self.store.read(job_id)
        self.store.cancel(job_id)
        return self.store.read(job_id)

    def depths(self) -> dict[str, int]:
        """Return how many jobs wait in each queue, and how many are parked."""
        return queue_depths(self._redis) | {"memgate-slow-parked": self.store.num_parked()}

    def shares(self) -> CallerShares:
        """Return what callers use now."""
        return read_shares(self._redis)

    def num_workers(self, speed: Speed = Speed.SLOW) -> int:
        """Return how many workers for this kind of work have reported in lately."""
        return sum(speed in worker.speeds for worker in read_roster(self._probe))

    def oldest_age_seconds(self) -> float:
        """Return how long the oldest open job has waited."""
        oldest = self.store.oldest_open()
        return 0.0 if oldest is None else max(0.0, datetime.now(UTC).timestamp() - oldest)

    def roster(self) -> builtins.list[WorkerSeen]:
        """Return the workers that have reported in lately, and what each is doing."""
        return read_roster(self._redis)

    def read_many(self, job_ids: Sequence[str]) -> builtins.list[JobRecord]:
        """Return those of these jobs that exist."""
        return self.store.read_many(job_ids)

    def num_open(self) -> int:
        """Return how many jobs are open."""
        return self.store.num_open()

    def load_view(self, job_id: str) -> bytes | None:
        """Return a job's memory curve, JSON, if there is one."""
        return self.store.load_view(job_id)

    # --- outcomes, counters and what the dashboard shows

    def add_outcome(self, outcome: MeasuredOutcome) -> None:
        """Store what a finished job really took."""
        self.store.add_outcome(outcome)

    def is_new_run(self, job: str, run: str) -> bool:
        """Say whether no outcome of a run of a job has come before, and remember it."""
        return self.store.is_new_run(job, run)

    def outcomes(self, count: int = 100_000) -> builtins.list[MeasuredOutcome]:
        """Return what jobs really took, the newest first."""
        return self.store.outcomes(count)

    def count(self, name: str, label: str, by: float = 1) -> None:
        """Add to a counter that all programs share."""
        self.store.count(name, label, by)

    def counters(self) -> dict[str, float]:
        """Return all counters, as ``name/label``."""
        return self.store.counters()

    def count_now(self, counts: Mapping[str, int]) -> None:
        """Add to the counts of this minute."""
        self.store.note(counts)

    def minutes(self, minutes: Sequence[int]) -> builtins.list[dict[str, int]]:
        """Return what was counted in each of some minutes since the epoch."""
        return self.store.minutes(minutes)

    def history(self) -> Iterator[HistoryEntry]:
        """Yield finished jobs, the newest first."""
        return read_history(self.store)

    # --- sessions of people who have signed in with a key

    def save_session(self, digest: str, key_id: str, seconds: int) -> None:
        """Remember whose session it is; only the browser knows its token."""
        self.store.save_session(digest, key_id, seconds)

    def load_session(self, digest: str) -> str | None:
        """Return the id of the key that a session was opened with."""
        return self.store.load_session(digest)

    def drop_session(self, digest: str) -> None:
        """End a session."""
        self.store.drop_session(digest)
