"""``/healthz``, ``/readyz`` and ``/metrics``: is it alive, can it work, what does it do?"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from memgate.errors import Fault
from memgate.schemas import Problem
from memgate_service.http.dependencies import Deps
from memgate_service.http.errors import problem

probes = APIRouter(tags=["probes"])


@probes.get("/healthz")
async def read_health() -> dict[str, str]:
    """Answer while the process lives."""
    return {"status": "ok"}


@probes.get(
    "/readyz",
    response_model=dict[str, str],
    responses={503: {"model": Problem, "description": "Something is missing; says what."}},
)
def read_readiness(deps: Deps) -> Response:
    """Answer 200 if requests can be served, and otherwise 503 with what is missing."""
    if (missing := deps.queue.unreachable_because()) is not None:
        detail = f"the queue cannot be reached ({missing}); check MEMGATE_REDIS_URL"
        return problem(503, "QUEUE_UNREACHABLE", detail)
    if not deps.queue.num_workers():
        detail = "no worker has reported in; start one with: python -P -m memgate_worker"
        return problem(503, "NO_WORKER", detail, fault=Fault.OPERATOR)
    return JSONResponse({"status": "ready"})


@probes.get("/metrics", response_class=PlainTextResponse)
def read_metrics(deps: Deps) -> Response:
    """Answer Prometheus."""
    return Response(deps.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
