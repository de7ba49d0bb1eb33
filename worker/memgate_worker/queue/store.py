"""What is kept between service and workers, in Redis or Valkey: jobs, timelines, traces, outcomes.

Every key is made by ``_key`` and has a time to live, except the indexes, whose entries are removed
with what they point to, or after it. Values are JSON, or bytes that nothing ever unpickles. What
must not be seen half done is in ``scripts``.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
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
from memgate.decision import Decision
from memgate.errors import Fault
from memgate_worker.queue import scripts
from memgate_worker.queue.settings import QueueSettings

#: told when a job is over, and when its advice is there: its id
DONE_CHANNEL = "memgate:over"

#: all jobs by the time they were created, and those that are not over
_JOBS = "memgate:jobs"
_OPEN = "memgate:open"
#: timelines and views by when they were last used, their sizes, and the sum of these
_TIMELINES = ["memgate:timelines", "memgate:timelines:sizes", "memgate:timelines:total"]
#: which of the watchdogs looks
_WATCHDOG = "memgate:watchdog"
_COUNTERS = "memgate:counters"
_OUTCOMES = "memgate:outcomes"
_MAX_OUTCOMES = 1_000_000
_DECISIONS = "memgate:decisions"

#: for how long the counts of a minute are kept, and how many decisions
MINUTES_KEPT = 24 * 60
MAX_DECISIONS = 20_000


class MeasuredOutcome(BaseModel):
    """What a finished job really took, beside what was predicted."""

    model_config = ConfigDict(frozen=True)

    job: str
    model: str
    gpu: str
    predicted_peak_bytes: int
    upper_bound_bytes: int
    measured_peak_bytes: int
    ran_out: bool
    peak_bound_bytes: int | None = None
    """The most that the measured figure should be; None in what an older version stored."""
    decision: Decision | None = None
    """What was said of the job, None if it ran on another GPU than that was said of."""
    capacity_bytes: int | None = None

    @property
    def is_within(self) -> bool:
        """It took no more than it should have.

        ``upper_bound_bytes`` is about the least memory in which a job runs. With more to be had
        the allocator keeps more, and that is no mistake of the bound's.
        """
        return self.measured_peak_bytes <= (self.peak_bound_bytes or self.upper_bound_bytes)


def _key(kind: str, name: str) -> str:
    return f"memgate:{kind}:{name}"


def _now() -> datetime:
    return datetime.now(UTC)


class JobStore:
    """All that is remembered."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        #: Any: redis-py types each answer as one that may have to be awaited
        self.redis: Any = redis
        self._settings = settings
        self._create = redis.register_script(scripts.CREATE)
        self._end = redis.register_script(scripts.END)
        self._add_advice = redis.register_script(scripts.ADD_ADVICE)
        self._begin = redis.register_script(scripts.BEGIN)
        self._hold = redis.register_script(scripts.HOLD)
        self._release = redis.register_script(scripts.RELEASE)
        self._forget = redis.register_script(scripts.FORGET)
        self._cache = redis.register_script(scripts.CACHE)
        self._look_up = redis.register_script(scripts.LOOK_UP)
        self._missing = redis.register_script(scripts.MISSING)
        self._lead = redis.register_script(scripts.LEAD)

    # --- jobs

    def create(
        self, job_id: str, work: Work, priority: Priority, asked_by: Asker = Asker.CALLER
    ) -> bool:
        """Remember a job unless it is there already; tell whether it is new.

        One that was canceled, or failed through no fault of the caller's, is begun anew.

        Raises:
            QueueFullError: if too many are not over.
        """
        now = _now()
        settings = self._settings
        created = self._create(
            keys=[_key("job", job_id), _JOBS, _OPEN, _key("lease", job_id)],
            args=[
                *(job_id, work.kind, work.model_dump_json(by_alias=True), now.isoformat()),
                *(priority, settings.result_ttl_seconds, now.timestamp(), settings.max_queued),
                asked_by,
            ],
        )
        if created == -1:
            raise self._full()
        if created:
            self._forget(keys=[_JOBS, _OPEN], args=[settings.max_jobs, _key("job", "")])
        return bool(created)

    def refuse_if_full(self) -> None:
        """Raise QueueFullError if too many jobs are not over."""
        if self.num_open() >= self._settings.max_queued:
            raise self._full()

    def _full(self) -> QueueFullError:
        return QueueFullError(f"{self._settings.max_queued} jobs are waiting; try again later")

    def begin(self, job_id: str, worker: str) -> bool:
        """Take a job; False if it is over or somebody else's."""
        keys = [_key("job", job_id), _key("lease", job_id)]
        return bool(self._begin(keys=keys, args=[worker, self._lease_ms(), _now().isoformat()]))

    def hold(self, job_id: str, worker: str) -> bool:
        """Say that a worker is still at it; False if it should stop."""
        keys = [_key("job", job_id), _key("lease", job_id)]
        args: list[Any] = [worker, self._lease_ms(), self._lease_end()]
        return bool(self._hold(keys=keys, args=args))

    def release(self, job_id: str, worker: str) -> None:
        """Give a job back before the lease is over, unless it is somebody else's by now."""
        self._release(keys=[_key("job", job_id), _key("lease", job_id)], args=[worker])

    def missing(self, queue_keys: Sequence[str]) -> list[str]:
        """Return the open jobs that are in none of rq's queues and that no worker is at."""
        found = self._missing(keys=[_OPEN, *queue_keys], args=[_key("lease", "")])
        return [job_id.decode() for job_id in found]

    def lead(self, name: str) -> bool:
        """Tell whether we are the one who looks for lost jobs; for a lease at a time."""
        return bool(self._lead(keys=[_WATCHDOG], args=[name, self._lease_ms()]))

    def _lease_ms(self) -> int:
        return int(self._settings.lease_seconds * 1000)

    def _lease_end(self) -> str:
        return (_now() + timedelta(seconds=self._settings.lease_seconds)).isoformat()

    def finish(self, job_id: str, result: str, *, with_advice_to_come: bool = False) -> bool:
        """Store an answer, JSON; the first one counts.

        Whoever wants to add advice to it holds the job meanwhile: when nobody does, none will come.
        """
        until = self._lease_end() if with_advice_to_come else ""
        return self._over(job_id, JobState.DONE, "result", result, until)

    def add_advice(self, job_id: str, worker: str, result: str | None) -> bool:
        """Store an answer again, with advice; None if there is no advice. Wakes who waits for it.

        False if the worker's answer is not there any more.
        """
        keys = [_key("job", job_id), DONE_CHANNEL]
        return bool(self._add_advice(keys=keys, args=[job_id, worker, result or ""]))

    def fail(self, job_id: str, error: Failure) -> bool:
        """Store why there is no answer."""
        return self._over(job_id, JobState.FAILED, "error", error.model_dump_json())

    def cancel(self, job_id: str) -> bool:
        """End a job that nobody wants any more; False if it was over."""
        error = Failure(code="CANCELED", message="the job was canceled", fault=Fault.PASSING)
        return self._over(job_id, JobState.CANCELED, "error", error.model_dump_json())

    def _over(
        self, job_id: str, state: JobState, field: str, value: str, advice_until: str = ""
    ) -> bool:
        ttl = self._settings.result_ttl_seconds
        return bool(
            self._end(
                keys=[_key("job", job_id), _OPEN, DONE_CHANNEL],
                args=[job_id, state, _now().isoformat(), field, value, ttl, advice_until],
            )
        )

    def read(self, job_id: str) -> JobRecord:
        """Return a job.

        Raises:
            UnknownJobError: if there is none.
        """
        record = self._record(job_id, self.redis.hgetall(_key("job", job_id)))
        if record is None:
            raise UnknownJobError(f"there is no job {job_id!r}; it may have been long ago")
        return record

    def read_many(self, job_ids: Sequence[str]) -> list[JobRecord]:
        """Return those jobs that there are."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hgetall(_key("job", job_id))
            found = pipeline.execute()
        records = (
            self._record(job_id, fields) for job_id, fields in zip(job_ids, found, strict=True)
        )
        return [record for record in records if record is not None]

    def _record(self, job_id: str, fields: dict[bytes, bytes]) -> JobRecord | None:
        record = _read_record(job_id, fields)
        return None if record is None else record.with_page(self._settings.public_url)

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        """Return how far jobs have come; None for those that there are not."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hget(_key("job", job_id), "state")
            found = pipeline.execute()
        return [None if state is None else JobState(state.decode()) for state in found]

    def newest(self, offset: int, count: int) -> list[str]:
        """Return ids of jobs, the newest first."""
        found = self.redis.zrevrange(_JOBS, offset, offset + count - 1)
        return [job_id.decode() for job_id in found]

    def num_jobs(self) -> int:
        """Return how many are remembered."""
        return int(self.redis.zcard(_JOBS))

    def open_jobs(self) -> dict[str, float]:
        """Return the jobs that are not over, and when they were created."""
        found = self.redis.zrange(_OPEN, 0, -1, withscores=True)
        return {job_id.decode(): created for job_id, created in found}

    def oldest_open(self) -> float | None:
        """Return when the oldest job that is not over was created."""
        found = self.redis.zrange(_OPEN, 0, 0, withscores=True)
        return found[0][1] if found else None

    def num_open(self) -> int:
        """Return how many jobs are not over."""
        return int(self.redis.zcard(_OPEN))

    def forget(self, job_id: str) -> None:
        """Drop a job that cannot be read, so that it can be asked anew."""
        self.redis.delete(_key("job", job_id))

    def forget_open(self, job_id: str) -> None:
        """Drop what expired from the list of open jobs."""
        self.redis.zrem(_OPEN, job_id)

    def claim_rescue(self, job_id: str) -> bool:
        """Tell whether we are the first of the watchdogs to see that a job was lost."""
        return bool(self.redis.set(_key("rescue", job_id), "1", nx=True, px=self._lease_ms()))

    # --- what pages show

    def save_view(self, job_id: str, view: str) -> None:
        """Keep a job's memory curve, JSON, as long as there is room."""
        self.save_timeline(f"view:{job_id}", zlib.compress(view.encode(), 1))

    def load_view(self, job_id: str) -> bytes | None:
        """Return a job's memory curve, JSON, if there is one."""
        packed = self.load_timeline(f"view:{job_id}")
        return None if packed is None else zlib.decompress(packed)

    # --- outcomes: kept for good, the newest million

    def add_outcome(self, outcome: MeasuredOutcome) -> None:
        """Keep what a finished job really took."""
        fields = {"outcome": outcome.model_dump_json()}
        self.redis.xadd(_OUTCOMES, fields, maxlen=_MAX_OUTCOMES, approximate=True)

    def outcomes(self, count: int = 100_000) -> list[MeasuredOutcome]:
        """Return what jobs really took, the newest first."""
        found = self.redis.xrevrange(_OUTCOMES, count=count)
        return [MeasuredOutcome.model_validate_json(fields[b"outcome"]) for _, fields in found]

    # --- counters of all programs together

    def count(self, name: str, label: str, by: float = 1) -> None:
        """Add to a counter."""
        self.redis.hincrbyfloat(_COUNTERS, f"{name}/{label}", by)

    def counters(self) -> dict[str, float]:
        """Return all counters, as ``name/label``."""
        return {key.decode(): float(n) for key, n in self.redis.hgetall(_COUNTERS).items()}

    # --- what happened when, for who watches: by the minute, and the newest decisions

    def note(self, counts: Mapping[str, int], decision: bytes | None = None) -> None:
        """Add to what is counted in this minute, and a decision to the newest ones."""
        key = _key("minute", str(int(_now().timestamp()) // 60))
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
                pipeline.hgetall(_key("minute", str(minute)))
            found = pipeline.execute()
        return [{name.decode(): int(n) for name, n in counts.items()} for counts in found]

    def decisions(self, first: int, count: int) -> list[bytes]:
        """Return decisions by their place in the log, the newest first."""
        found: list[bytes] = self.redis.lrange(_DECISIONS, first, first + count - 1)
        return found

    # --- sessions of people who have shown a key to a page

    def save_session(self, digest: str, key_id: str, seconds: int) -> None:
        """Remember whose a session is; its token is known to the browser alone."""
        self.redis.set(_key("session", digest), key_id, ex=seconds)

    def load_session(self, digest: str) -> str | None:
        """Return the id of the key that a session was opened with."""
        key_id = self.redis.get(_key("session", digest))
        return None if key_id is None else key_id.decode()

    def drop_session(self, digest: str) -> None:
        """End a session."""
        self.redis.delete(_key("session", digest))

    # --- timelines

    def save_timeline(self, name: str, packed: bytes) -> None:
        """Keep a timeline; the ones that were not used for longest go if there are too many."""
        settings = self._settings
        ttl, most = settings.result_ttl_seconds, settings.max_timelines_bytes
        args: list[Any] = [name, packed, _now().timestamp(), ttl, most, _key("timeline", "")]
        self._cache(keys=_TIMELINES, args=args)

    def load_timeline(self, name: str) -> bytes | None:
        """Return a timeline, if it is there."""
        args: list[Any] = [name, _now().timestamp(), _key("timeline", "")]
        packed = self._look_up(keys=_TIMELINES, args=args)
        return None if packed is None else bytes(packed)

    def has_timeline(self, name: str) -> bool:
        """Tell whether a timeline is there."""
        return bool(self.redis.exists(_key("timeline", name)))

    # --- traces

    def save_trace(self, data: bytes) -> str:
        """Keep an uploaded trace for a while; return the digest that names it."""
        name = hashlib.sha256(data).hexdigest()
        self.redis.set(_key("trace", name), data, ex=self._settings.trace_ttl_seconds)
        return name

    def load_trace(self, name: str) -> bytes | None:
        """Return an uploaded trace, if it is still there."""
        data = self.redis.get(_key("trace", name))
        return None if data is None else bytes(data)


def _read_record(job_id: str, fields: dict[bytes, bytes]) -> JobRecord | None:
    """Read a job; None if there is none, or if another version wrote it in another layout."""
    if not fields:
        return None
    texts: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
    documents = {
        name: msgspec.json.decode(texts.pop(name))
        for name in ("work", "result", "error")
        if name in texts
    }
    try:
        return JobRecord.model_validate({"id": job_id} | texts | documents)
    except ValidationError:
        return None
