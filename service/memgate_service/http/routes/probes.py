"""``/healthz``, ``/readyz`` and ``/metrics``: is it alive, can it work, what does it do?"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from memgate.errors import Fault
from memgate.schemas import Problem
from memgate_service.http.dependencies import Deps
from memgate_service.http.errors import problem
from memgate_worker.runtimes.runtime import install_command

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
    """Answer 200 if requests can be served, and otherwise 503 with what is missing.

    Without a runtime the status is ``degraded``, and still 200: uploads are answered.
    """
    if (missing := deps.queue.unreachable_because()) is not None:
        detail = f"the queue cannot be reached ({missing}); check MEMGATE_REDIS_URL"
        return problem(503, "QUEUE_UNREACHABLE", detail)
    if not deps.queue.num_workers():
        detail = "no worker has reported in; start one with: python -P -m memgate_worker"
        return problem(503, "NO_WORKER", detail, fault=Fault.OPERATOR)
    if (runtime := deps.queue.missing_runtime()) is not None:
        return JSONResponse({"status": "degraded"} | _no_runtime(runtime))
    return JSONResponse({"status": "ready"})


def _no_runtime(name: str) -> dict[str, str]:
    detail = (
        f"no runtime: no worker has {name}, so jobs that name no runtime get no answer; traces,"
        f" snapshots and timelines do. Where the workers are, run: {install_command(name)}"
    )
    return {"code": "RUNTIME_MISSING", "detail": detail}


@probes.get("/metrics", response_class=PlainTextResponse)
def read_metrics(deps: Deps) -> Response:
    """Answer Prometheus."""
    return Response(deps.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
