"""Questions -> answers in time, or why there are none. Nobody at a gate waits for longer.

A dry run asks nobody: it finds what is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import anyio
import anyio.to_thread
from pydantic import ValidationError

from memgate.contract import Asker, JobRecord, JobState, Priority, UnknownJobError, Work, WorkKind
from memgate.errors import InputError
from memgate.max_batch import MaxBatch
from memgate.report import Estimate
from memgate_service.admission.core.judgement import Known, NoAnswer, Said, Unknown
from memgate_service.http.dependencies import Parts
from memgate_service.http.errors import ProblemError
from memgate_service.http.questions import is_advice_pending, wait_for
from memgate_service.http.response_cache import CachedResponse, cache_key
from memgate_worker.queue.client import QueueError

#: of Kubernetes, for a webhook that says nothing else
_DEFAULT_TIMEOUT = 10.0

#: for how long anybody waits for a largest batch, and how long after it was first asked for
_BATCH_SECONDS = 10.0

_SECONDS = re.compile(r"(\d{1,4}(?:\.\d{1,9})?)s")


class Patience(NamedTuple):
    """How long an answer may take, in seconds."""

    #: for a job that is being run
    wait: float
    #: for everything: a store that hangs, an API server that is slow
    limit: float

    def after(self, seconds: float) -> Patience:
        """Return what is left of it."""
        return Patience(max(0.0, self.wait - seconds), max(0.0, self.limit - seconds))


def read_patience(timeout: str | None, wait: float) -> Patience:
    """Return how long to wait, given what the API server says of its patience (``timeout=10s``).

    A little less than all of it: the answer has a way to go.
    """
    found = _SECONDS.fullmatch(timeout or "")
    seconds = float(found.group(1)) if found else _DEFAULT_TIMEOUT
    limit = max(0.1, 0.9 * seconds - 0.2)
    return Patience(wait=min(wait, max(0.0, limit - 0.1)), limit=limit)


async def ask_all(
    parts: Parts, works: Mapping[str, Work], patience: Patience, *, is_dry_run: bool
) -> dict[str, Said]:
    """Ask questions, by their ids, side by side; each has something said to it in time."""
    said: dict[str, Said] = {}

    async def ask(job_id: str, work: Work) -> None:
        said[job_id] = await _ask(parts, job_id, work, patience, is_dry_run=is_dry_run)

    async with anyio.create_task_group() as tasks:
        for job_id, work in works.items():
            remembered = parts.answers.get(_key(job_id))
            if remembered is None:
                tasks.start_soon(ask, job_id, work)
            else:
                parts.metrics.cache_lookups.labels("memory").inc()
                said[job_id] = Known(job_id, Estimate.model_validate_json(remembered.body))
    return said


async def await_advice(parts: Parts, job_ids: Iterable[str], patience: Patience) -> dict[str, Said]:
    """Wait for advice that is being looked for; return the answers that have been given theirs.

    Only what a refusal says depends on it: an answer that stays without is left as it is.
    """
    advised: dict[str, Said] = {}
    seconds = min(patience.wait, _BATCH_SECONDS)

    async def wait(job_id: str) -> None:
        try:
            with anyio.fail_after(patience.limit):
                record = await _look_up(parts, job_id)
                if record is not None:
                    record = await wait_for(parts, record, seconds, with_advice=True)
        except (TimeoutError, QueueError, InputError, ProblemError):
            return
        if record is not None and record.state is JobState.DONE:
            said = _known(parts, record)
            if isinstance(said, Known) and not said.is_advice_pending:
                advised[job_id] = said

    async with anyio.create_task_group() as tasks:
        for job_id in job_ids:
            tasks.start_soon(wait, job_id)
    return advised


def _key(job_id: str, kind: WorkKind = WorkKind.ESTIMATE) -> bytes:
    return cache_key(kind, job_id.encode())


async def ask_batches(
    parts: Parts, works: Mapping[str, Work], patience: Patience, *, is_dry_run: bool
) -> dict[str, MaxBatch]:
    """Ask for the largest batches, side by side; return those that are known in time.

    They are advice, and looking for one takes several runs: who must know whether a job fits comes
    first, and nobody waits for one that was asked for a while ago.
    """
    found: dict[str, MaxBatch] = {}

    async def ask(job_id: str, work: Work) -> None:
        try:
            with anyio.fail_after(patience.limit):
                record = await _find_batch(parts, work, job_id, patience.wait, is_dry_run)
            if record is not None and record.state is JobState.DONE:
                found[job_id] = MaxBatch.model_validate(record.result)
        except (TimeoutError, QueueError, InputError, ProblemError, ValidationError):
            return
        if job_id in found and record is not None:
            body = found[job_id].model_dump_json().encode()
            response = CachedResponse(job_id, body, record.identity)
            parts.answers[_key(job_id, WorkKind.MAX_BATCH)] = response

    async with anyio.create_task_group() as tasks:
        for job_id, work in works.items():
            remembered = parts.answers.get(_key(job_id, WorkKind.MAX_BATCH))
            if remembered is None:
                tasks.start_soon(ask, job_id, work)
            else:
                found[job_id] = MaxBatch.model_validate_json(remembered.body)
    return found


async def _ask(
    parts: Parts, job_id: str, work: Work, patience: Patience, *, is_dry_run: bool
) -> Said:
    try:
        with anyio.fail_after(patience.limit):
            record = await _find(parts, work, job_id, patience.wait, is_dry_run=is_dry_run)
    except TimeoutError:
        return NoAnswer(job_id, "memgate's queue does not answer")
    except QueueError:
        return NoAnswer(job_id, "memgate's queue cannot be reached")
    except (InputError, ProblemError) as error:  # too much is waiting
        return NoAnswer(job_id, f"memgate is busy: {error}")
    if record is None:
        return NoAnswer(job_id, "nobody has asked before, and a dry run does not")
    if record.state is JobState.DONE and record.result is not None:
        return _known(parts, record)
    if record.error is not None:
        return Unknown(job_id, f"{record.error.message} ({record.error.code})")
    return NoAnswer(job_id, "the estimate is being made")


async def _find(
    parts: Parts, work: Work, job_id: str, seconds: float, *, is_dry_run: bool
) -> JobRecord | None:
    if is_dry_run:
        return await _look_up(parts, job_id)
    start = anyio.current_time()
    record = await _submit(parts, work, Priority.HIGH, Asker.CALLER)
    found = "nowhere" if record.state.is_open else "store"
    parts.metrics.cache_lookups.labels(found).inc()
    return await wait_for(parts, record, seconds - (anyio.current_time() - start))


async def _find_batch(
    parts: Parts, work: Work, job_id: str, seconds: float, is_dry_run: bool
) -> JobRecord | None:
    if is_dry_run:
        return await _look_up(parts, job_id)
    start = anyio.current_time()
    record = await _submit(parts, work, Priority.NORMAL, Asker.GATE)
    age = (datetime.now(UTC) - record.created_at).total_seconds()
    left = min(seconds - (anyio.current_time() - start), _BATCH_SECONDS - age)
    return await wait_for(parts, record, left)


async def _look_up(parts: Parts, job_id: str) -> JobRecord | None:
    try:
        return await anyio.to_thread.run_sync(parts.queue.read, job_id, abandon_on_cancel=True)
    except UnknownJobError:
        return None


async def _submit(parts: Parts, work: Work, priority: Priority, asker: Asker) -> JobRecord:
    return await anyio.to_thread.run_sync(
        parts.queue.submit, work, priority, asker, limiter=parts.submitting, abandon_on_cancel=True
    )


def _known(parts: Parts, record: JobRecord) -> Known | Unknown:
    try:
        estimate = Estimate.model_validate(record.result)
    except ValidationError:  # of another version of memgate
        return Unknown(record.id, "the stored estimate cannot be read")
    if is_advice_pending(record):
        return Known(record.id, estimate, is_advice_pending=True)
    body = estimate.model_dump_json().encode()
    parts.answers[_key(record.id)] = CachedResponse(record.id, body, record.identity)
    return Known(record.id, estimate)
