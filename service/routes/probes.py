"""``/healthz`` and ``/readyz``: is the process alive, and can it do its work?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from worker.client import QueueClient

probes = APIRouter(tags=["probes"])


def _queue(request: Request) -> QueueClient:
    queue = request.app.state.queue
    assert isinstance(queue, QueueClient)
    return queue


@probes.get("/healthz")
def read_health() -> dict[str, str]:
    """Answer as long as the process lives."""
    return {"status": "ok"}


@probes.get("/readyz", responses={503: {"description": "Something is missing; says what."}})
def read_readiness(queue: Annotated[QueueClient, Depends(_queue)]) -> JSONResponse:
    """Answer 200 if requests can be served, else 503 and what is missing."""
    problem = queue.unreachable_because()
    if problem is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse(
        {
            "type": "about:blank",
            "title": "Not ready",
            "status": 503,
            "code": "QUEUE_UNREACHABLE",
            "detail": f"the queue cannot be reached ({problem}); check MEMGATE_REDIS_URL",
        },
        status_code=503,
        media_type="application/problem+json",
    )
