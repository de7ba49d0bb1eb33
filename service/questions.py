"""Work -> an HTTP answer: from the store, or by waiting for a worker.

What was answered before, byte for byte, does not come here: see ``remembered``.
"""

from __future__ import annotations

import re
from typing import Annotated

import anyio.to_thread
from fastapi import Header, Request
from fastapi.responses import JSONResponse, Response

from service.errors import problem_of_job
from service.parts import Parts
from service.remembered import Answer
from worker.contract import JobRecord, JobState, Priority, Work

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})(?:$|[,;\s])")

Prefer = Annotated[
    str | None,
    Header(description="`wait=N`: wait up to N seconds for the answer.", examples=["wait=10"]),
]


async def ask(
    request: Request,
    parts: Parts,
    work: Work,
    priority: Priority,
    *,
    prefer: str | None,
    key: bytes | None = None,
) -> Response:
    """Put a question to the workers, or find that it was answered."""
    record = await anyio.to_thread.run_sync(
        parts.queue.submit, work, priority, limiter=parts.submitting
    )
    request.state.job = record.id
    found = "store" if not record.state.is_open else "nowhere"
    parts.metrics.cache_lookups.labels(found).inc()
    seconds = wait_seconds(prefer, parts.settings.max_wait_seconds)
    record = await wait_for(parts, record, seconds)
    if record.state is JobState.DONE:
        body = JSONResponse(record.result).body
        assert isinstance(body, bytes)
        if key is not None:
            parts.answers[key] = Answer(record.id, body)
        headers = {"Location": f"/jobs/{record.id}", "X-Memgate-Cache": found}
        return Response(body, media_type="application/json", headers=headers)
    if record.error is not None:
        return problem_of_job(record.id, record.error)
    return accepted(record, seconds)


async def wait_for(parts: Parts, record: JobRecord, seconds: float) -> JobRecord:
    """Return a job when it is over, or when the time is."""
    left = seconds
    while record.state.is_open and left > 0 and not parts.waiters.is_over:
        start = anyio.current_time()
        with parts.metrics.waiting.track_inprogress():
            await parts.waiters.wait(record.id, left)
        record = await anyio.to_thread.run_sync(parts.queue.read, record.id)
        left -= anyio.current_time() - start
    return record


def wait_seconds(prefer: str | None, most: float) -> float:
    """Read how long a caller wants to wait (RFC 7240); not at all unless it says so."""
    found = _WAIT.search(prefer or "")
    return min(float(found.group(1)), most) if found else 0.0


def accepted(record: JobRecord, seconds: float) -> Response:
    """Say that there is no answer yet, and where it will be."""
    headers = {"Location": f"/jobs/{record.id}", "Retry-After": "1"}
    if seconds:
        headers["Preference-Applied"] = f"wait={seconds:g}"
    return JSONResponse({"id": record.id, "state": record.state}, 202, headers=headers)
