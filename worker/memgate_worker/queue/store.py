"""What is kept between service and workers, in Redis or Valkey: jobs, outcomes, counters, sessions.

Timelines and traces are in ``blobs``. Every key is made by ``redis_key`` and has a time to live,
except the indexes, whose entries are removed with what they point to, or after it. Values are JSON,
or bytes that nothing ever unpickles. What must not be seen half done is in ``scripts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from redis import Redis

from memgate.contract import (
    Asker,
    Failure,
    JobRecord,
    JobState,
    Priority,
    QueueFullError,
    UnknownJobError,
    Work,
)
from memgate.errors import Fault
from memgate_worker.queue import question_scripts, scripts
from memgate_worker.queue.announcements import Served
from memgate_worker.queue.blobs import redis_key
from memgate_worker.queue.leases import OPEN, LeaseStore, now
from memgate_worker.queue.outcomes import MeasuredOutcome
from memgate_worker.queue.question import AskedQuestion, pack_questions
from memgate_worker.queue.records import read_numbers, read_outcome, read_record, read_state
from memgate_worker.queue.settings import QueueSettings

#: where the id of a job is published when it is finished, and again when its advice is there
FINISHED_CHANNEL = "memgate:finished"

#: all jobs by the time they were created
_JOBS = "memgate:jobs"
_COUNTERS = "memgate:counters"
_OUTCOMES = "memgate:outcomes"
_MAX_OUTCOMES = 1_000_000

#: how long a second outcome of a run is recognised
_RUN_SECONDS = 90 * 24 * 3600
_DECISIONS = "memgate:decisions"

#: how long the counts of a minute are kept, and how many decisions
MINUTES_KEPT = 24 * 60
MAX_DECISIONS = 20_000


#: why a job that was canceled has no answer
CANCELED = Failure(code="CANCELED", message="the job was canceled", fault=Fault.PASSING)

#: there are no workers: whatever is stored counts
NOBODY = Served()


class JobStore(LeaseStore):
    """Everything that is stored."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._create = redis.register_script(question_scripts.CREATE)
        self._end = redis.register_script(question_scripts.END)
        self._add_advice = redis.register_script(scripts.ADD_ADVICE)
        self._forget = redis.register_script(scripts.FORGET)

    # --- jobs

    def create(
        self,
        job_id: str,
        work: Work,
        priority: Priority,
        asked_by: Asker = Asker.CALLER,
        served: Served = NOBODY,
        caller: str = "",
        question: AskedQuestion | None = None,
    ) -> bool:
        """Store a job unless it exists; return whether it is new.

        A job that has ended starts over unless its result still counts, see
        ``question_scripts.CREATE``: ``served`` is what can answer it now; ``caller`` is whose share
        it takes, if that is known; ``question`` is kept with it.

        Raises:
            QueueFullError: if too many are open, or too many of the caller's.
        """
        created_at = now()
        settings = self._settings
        created = self._create(
            keys=[
                *(redis_key("job", job_id), _JOBS, OPEN, redis_key("lease", job_id)),
                *(redis_key("open", caller), redis_key("wanted", job_id)),
            ],
            args=[
                *(job_id, work.kind, work.model_dump_json(by_alias=True), created_at.isoformat()),
                *(
                    priority,
                    settings.result_ttl_seconds,
                    created_at.timestamp(),
                    settings.max_queued,
                ),
                *(asked_by, ",".join(served.identities)),
                *(served.limits.memory_bytes, served.limits.seconds),
                *(caller, settings.max_queued_each),
                *(question.id if question else "", pack_questions([question] if question else [])),
                *(settings.max_jobs, settings.max_jobs_each),
            ],
        )
        if created == -1:
            raise self._full()
        if created == -2:
            raise QueueFullError(
                f"{settings.max_queued_each} jobs of {caller} are waiting, which is as many as one"
                " caller may have; try again later"
            )
        if created:
            self._forget(keys=[_JOBS, OPEN], args=[settings.max_jobs, redis_key("job", "")])
        return bool(created)

    def discard(self, job_id: str) -> None:
        """Drop a job in any state: its record cannot be read."""
        with self.redis.pipeline() as pipeline:
            pipeline.delete(redis_key("job", job_id), redis_key("lease", job_id))
            pipeline.zrem(OPEN, job_id)
            pipeline.zrem(_JOBS, job_id)
            pipeline.execute()

    def refuse_if_full(self) -> None:
        """Raise QueueFullError if too many jobs are open."""
        if self.num_open() >= self._settings.max_queued:
            raise self._full()

    def _full(self) -> QueueFullError:
        return QueueFullError(f"{self._settings.max_queued} jobs are waiting; try again later")

    def finish(
        self, job_id: str, result: str, *, identity: str = "", with_advice_to_come: bool = False
    ) -> bool:
        """Store an answer, JSON; the first one counts.

        Args:
            job_id: the job's.
            result: the answer.
            identity: digest of what made it.
            with_advice_to_come: the worker holds the job while it looks for advice to add; once
                nobody holds it, none will come.
        """
        fields = {"result": result, "identity": identity}
        if with_advice_to_come:
            fields["advice_until"] = self.lease_end()
        return self._end_job(job_id, JobState.DONE, fields)

    def add_advice(self, job_id: str, worker: str, result: str | None) -> bool:
        """Store an answer again, with advice; None if there is no advice. Wakes waiting clients.

        False if the worker's answer is no longer stored.
        """
        keys = [redis_key("job", job_id), FINISHED_CHANNEL]
        return bool(self._add_advice(keys=keys, args=[job_id, worker, result or ""]))

    def fail(
        self,
        job_id: str,
        error: Failure,
        *,
        identity: str = "",
        exceeded: Mapping[str, float] | None = None,
    ) -> bool:
        """Store why there is no answer.

        Args:
            job_id: the job's.
            error: why.
            identity: digest of what found that out.
            exceeded: the limit of ours that its run exceeded, by name.
        """
        fields = {"error": error.model_dump_json(), "identity": identity}
        fields |= {f"exceeded_{name}": repr(value) for name, value in (exceeded or {}).items()}
        return self._end_job(job_id, JobState.FAILED, fields)

    def cancel(self, job_id: str) -> bool:
        """End a job, whoever wants it; False if it had already ended."""
        is_ended = self._end_job(job_id, JobState.CANCELED, {"error": CANCELED.model_dump_json()})
        if is_ended:
            self.redis.delete(redis_key("lease", job_id))  # its worker notices in a moment
        return is_ended

    def caller_of(self, job_id: str) -> str:
        """Return whose share a job takes; empty if that is not known."""
        caller = self.redis.hget(redis_key("job", job_id), "caller")
        return "" if caller is None else caller.decode()

    def _end_job(self, job_id: str, state: JobState, fields: Mapping[str, str]) -> bool:
        ttl = self._settings.result_ttl_seconds
        written = [part for field in fields.items() for part in field]
        is_ended = bool(
            self._end(
                keys=[redis_key("job", job_id), OPEN, FINISHED_CHANNEL],
                args=[job_id, state, now().isoformat(), ttl, redis_key("open", ""), *written],
            )
        )
        if is_ended:
            self.drop_upload_of(job_id, is_answered=state is JobState.DONE)
        return is_ended

    def drop_upload_of(self, job_id: str, *, is_answered: bool) -> None:
        """Let the upload go that a job was about, if it was about one."""
        if upload := self.redis.hget(redis_key("job", job_id), "upload"):
            self.let_upload_go(upload.decode(), job_id, is_answered=is_answered)

    def read(self, job_id: str) -> JobRecord:
        """Return a job.

        Raises:
            UnknownJobError: if there is none.
        """
        record = self.find(job_id)
        if record is None:
            raise UnknownJobError(f"there is no job {job_id!r}; it may have expired")
        return record

    def find(self, job_id: str) -> JobRecord | None:
        """Return a job; None if there is none that can be read."""
        return read_record(job_id, self.redis.hgetall(redis_key("job", job_id)))

    def read_many(self, job_ids: Sequence[str]) -> list[JobRecord]:
        """Return those of these jobs that exist."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hgetall(redis_key("job", job_id))
            found = pipeline.execute()
        records = (
            read_record(job_id, fields) for job_id, fields in zip(job_ids, found, strict=True)
        )
        return [record for record in records if record is not None]

    def num_fitting(self, job_ids: Sequence[str], max_bytes: int) -> int:
        """Return how many of these jobs, from the first on, have so many bytes; at least one."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hstrlen(redis_key("job", job_id), "work")
                pipeline.hstrlen(redis_key("job", job_id), "result")
            sizes = pipeline.execute()
        totals = accumulate(
            work + result for work, result in zip(sizes[::2], sizes[1::2], strict=True)
        )
        num_fitting = sum(1 for total in totals if total <= max_bytes)
        return max(1, num_fitting)

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """Return the states of jobs; None for each that does not exist."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hget(redis_key("job", job_id), "state")
            found = pipeline.execute()
        return [read_state(state) for state in found]

    def newest(self, offset: int, count: int) -> list[str]:
        """Return ids of jobs, the newest first."""
        found = self.redis.zrevrange(_JOBS, offset, offset + count - 1)
        return [job_id.decode() for job_id in found]

    def num_jobs(self) -> int:
        """Return how many jobs are stored."""
        return int(self.redis.zcard(_JOBS))

    def open_jobs(self) -> dict[str, float]:
        """Return the open jobs, and when they were created."""
        found = self.redis.zrange(OPEN, 0, -1, withscores=True)
        return {job_id.decode(): created for job_id, created in found}

    def oldest_open(self) -> float | None:
        """Return when the oldest open job was created."""
        found = self.redis.zrange(OPEN, 0, 0, withscores=True)
        return found[0][1] if found else None

    def num_open(self) -> int:
        """Return how many jobs are open."""
        return int(self.redis.zcard(OPEN))

    def forget_open(self, job_id: str) -> None:
        """Drop what expired from the list of open jobs."""
        self.redis.zrem(OPEN, job_id)

    # --- outcomes: kept forever, the newest million

    def add_outcome(self, outcome: MeasuredOutcome) -> None:
        """Keep what a finished job really took."""
        fields = {"outcome": outcome.model_dump_json()}
        self.redis.xadd(_OUTCOMES, fields, maxlen=_MAX_OUTCOMES, approximate=True)

    def is_new_run(self, job: str, run: str) -> bool:
        """Say whether no outcome of a run of a job has come before, and remember it."""
        key = redis_key("outcome-run", f"{job}:{run}")
        return bool(self.redis.set(key, "1", nx=True, ex=_RUN_SECONDS))

    def outcomes(self, count: int = 100_000) -> list[MeasuredOutcome]:
        """Return what jobs really took, the newest first."""
        found = self.redis.xrevrange(_OUTCOMES, count=count)
        outcomes = (read_outcome(fields.get(b"outcome", b"")) for _, fields in found)
        return [outcome for outcome in outcomes if outcome is not None]

    # --- counters of all programs together

    def count(self, name: str, label: str, by: float = 1) -> None:
        """Add to a counter."""
        self.redis.hincrbyfloat(_COUNTERS, f"{name}/{label}", by)

    def counters(self) -> dict[str, float]:
        """Return all counters, as ``name/label``."""
        return read_numbers(self.redis.hgetall(_COUNTERS))

    # --- what the dashboard shows: counts by the minute, and the newest decisions

    def note(self, counts: Mapping[str, int], decision: bytes | None = None) -> None:
        """Add to the counts of this minute, and a decision to the newest ones."""
        key = redis_key("minute", str(int(now().timestamp()) // 60))
        with self.redis.pipeline(transaction=False) as pipeline:
            for name, by in counts.items():
                pipeline.hincrby(key, name, by)
            pipeline.expire(key, (MINUTES_KEPT + 60) * 60)
            if decision is not None:
                pipeline.lpush(_DECISIONS, decision)
                pipeline.ltrim(_DECISIONS, 0, MAX_DECISIONS - 1)
                pipeline.expire(_DECISIONS, self._settings.result_ttl_seconds)
            pipeline.execute()

    def minutes(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        """Return what was counted in each of some minutes since the epoch."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for minute in minutes:
                pipeline.hgetall(redis_key("minute", str(minute)))
            found = pipeline.execute()
        numbers = map(read_numbers, found)
        return [{name: int(n) for name, n in counts.items()} for counts in numbers]

    def decisions(self, first: int, count: int) -> list[bytes]:
        """Return decisions by their place in the log, the newest first."""
        found: list[bytes] = self.redis.lrange(_DECISIONS, first, first + count - 1)
        return found

    # --- sessions of people who have signed in with a key

    def save_session(self, digest: str, key_id: str, seconds: int) -> None:
        """Remember whose session it is; only the browser knows its token."""
        self.redis.set(redis_key("session", digest), key_id, ex=seconds)

    def load_session(self, digest: str) -> str | None:
        """Return the id of the key that a session was opened with."""
        key_id = self.redis.get(redis_key("session", digest))
        return None if key_id is None else key_id.decode()

    def drop_session(self, digest: str) -> None:
        """End a session."""
        self.redis.delete(redis_key("session", digest))
