"""Work -> an HTTP answer: from the store, or by waiting for a worker.

Requests that were answered before, byte for byte, do not get here: see ``response_cache``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import anyio.to_thread
from fastapi import Header, Request
from fastapi.responses import JSONResponse, Response

from memgate.contract import Asker, JobRecord, Priority, Work
from memgate.owner import Owner
from memgate.schemas import ADVICE_HEADER, PENDING
from memgate_service.http.access import refuse_right
from memgate_service.http.dependencies import Dependencies
from memgate_service.http.errors import problem_of_job
from memgate_service.http.ownership import owner_of
from memgate_service.http.response_cache import CachedResponse
from memgate_service.http.turns import end_turn
from memgate_worker.queue.keys import ApiKey, Right

#: whole seconds (RFC 7240), and fractions: a gate inside a scheduler counts in tenths
_WAIT = re.compile(
    r"""(?:^|[,;\s])wait\s*=\s*"?([0-9]{1,6}(?:\.[0-9]{1,3})?)"?(?:$|[,;\s])""", re.IGNORECASE
)

Prefer = Annotated[
    str | None,
    Header(description="`wait=N`: wait up to N seconds for the answer.", examples=["wait=10"]),
]


async def ask(
    request: Request,
    deps: Dependencies,
    work: Work,
    priority: Priority,
    *,
    prefer: str | None,
    key: bytes | None = None,
) -> Response:
    """Ask the workers a question, or find that it was answered before.

    Raises:
        ProblemError: 403 if the key does not allow such a question.
    """
    needed = rights_for(priority)
    check_rights(request, needed)
    owner = owner_of(request)
    record = await anyio.to_thread.run_sync(
        deps.queue.ask, work, owner, priority, Asker.CALLER, limiter=deps.submitting
    )
    request.state.job = record.id
    found = "store" if not record.state.is_open else "nowhere"
    deps.metrics.cache_lookups.labels(found).inc()
    seconds = wait_seconds(prefer, deps.settings.max_wait_seconds)
    record = await wait_for(deps, record, seconds, caller=owner.caller)
    if record.result is not None:
        body = record.result.model_dump_json().encode()
        if key is not None and not is_advice_pending(record):
            deps.answers[key] = CachedResponse.of(record, body, needed)
        headers = {"Location": f"/jobs/{record.id}", "X-Memgate-Cache": found}
        headers |= applied(seconds) | pending_advice(record)
        return Response(body, media_type="application/json", headers=headers)
    if record.error is not None:
        return problem_of_job(record.id, record.error)
    return accepted(record, seconds)


async def wait_for(
    deps: Dependencies,
    record: JobRecord,
    seconds: float,
    *,
    with_advice: bool = False,
    caller: str = "",
) -> JobRecord:
    """Return a job when it is finished, with its advice if needed, or when time is up."""

    def is_awaited(record: JobRecord) -> bool:
        return record.state.is_open or (with_advice and is_advice_pending(record))

    if not is_awaited(record) or seconds <= 0:
        return record
    deadline = anyio.current_time() + seconds
    end_turn()
    waiting = deps.waiters.waiting(record.run_id, caller, question_id=record.id)
    with waiting as bell, deps.metrics.waiting.track_inprogress():
        while True:
            # Read after the bell is in place: it may have finished before.
            record = await anyio.to_thread.run_sync(deps.asked.read, record.id)
            left = deadline - anyio.current_time()
            if not is_awaited(record) or left <= 0 or deps.waiters.is_stopped:
                return record
            await bell.wait(left)


def rights_for(priority: Priority) -> Right:
    """Return what a key must allow to ask with a priority."""
    return Right.SUBMIT | Right.HIGH_PRIORITY if priority is Priority.HIGH else Right.SUBMIT


def check_rights(request: Request, needed: Right) -> None:
    """Refuse a question that the key does not allow.

    Raises:
        ProblemError: 403.
    """
    key: ApiKey | None = getattr(request.state, "api_key", None)
    if key is not None and needed not in key.rights:
        raise refuse_right(key, needed, "priority is 'high': it")


def caller_of(request: Request) -> str:
    """Return whose share a request takes that only waits: its key's, if keys are needed."""
    return Owner(key=getattr(request.state, "key", "")).caller


def is_advice_pending(record: JobRecord) -> bool:
    """Return whether advice may still be added to an answer: until then it is not cached."""
    return record.is_advice_pending(datetime.now(UTC))


def pending_advice(record: JobRecord) -> dict[str, str]:
    """Say that more will come, if it will; the job's own URL is where to wait for it."""
    return {ADVICE_HEADER: PENDING} if is_advice_pending(record) else {}


def wait_seconds(prefer: str | None, most: float) -> float:
    """Read how long a caller wants to wait (RFC 7240); not at all by default."""
    found = _WAIT.search(prefer or "")
    return min(float(found.group(1)), most) if found else 0.0


def applied(seconds: float) -> dict[str, str]:
    """Confirm how long the caller said it would wait, as we understood it."""
    return {"Preference-Applied": f"wait={seconds:g}"} if seconds else {}


def accepted(record: JobRecord, seconds: float) -> Response:
    """Say that there is no answer yet, and where it will be."""
    headers = {"Location": f"/jobs/{record.id}", "Retry-After": "1"} | applied(seconds)
    return JSONResponse({"id": record.id, "state": record.state}, 202, headers=headers)
