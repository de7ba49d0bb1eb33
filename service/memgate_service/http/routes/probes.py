"""``/healthz``, ``/readyz`` and ``/metrics``: is it alive, can it work, what does it do?"""

from __future__ import annotations

import anyio
import anyio.to_thread
from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from memgate.errors import Fault
from memgate.schemas import Problem
from memgate.units import format_size
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.errors import problem
from memgate_worker.queue.client import Replication, ServerMemory
from memgate_worker.queue.settings import UNCONFIRMED
from memgate_worker.runtimes.runtime import install_command

#: a probe waits two seconds, whatever hangs
_READY_SECONDS = 1.5

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
async def read_readiness(deps: Deps) -> Response:
    """Answer 200 if requests can be served, and otherwise 503 with what is missing.

    Without a runtime the status is ``degraded``, and still 200: uploads are answered. So it is if
    the queue's server would drop what was accepted, or may lose it when it fails over.
    """
    with anyio.move_on_after(_READY_SECONDS):
        return await anyio.to_thread.run_sync(
            _look, deps, limiter=deps.probing, abandon_on_cancel=True
        )
    detail = f"the queue does not answer within {_READY_SECONDS:g} s; check MEMGATE_REDIS_URL"
    return problem(503, "QUEUE_UNREACHABLE", detail)


def _look(deps: Dependencies) -> Response:
    """Look whether all is there."""
    if (missing := deps.queue.unreachable_because()) is not None:
        detail = f"the queue cannot be reached ({missing}); check MEMGATE_REDIS_URL"
        return problem(503, "QUEUE_UNREACHABLE", detail)
    memory = deps.queue.memory()
    if memory.is_full:
        return problem(503, "STORE_FULL", _no_room(memory), fault=Fault.OPERATOR)
    if not memory.can_write:
        detail = (
            "the queue's server cannot write to its disk, and takes nothing new; its log says why:"
            " mostly the disk is full"
        )
        return problem(503, "STORE_DISK_FULL", detail, fault=Fault.OPERATOR)
    needed, replication = deps.settings.num_replicas, deps.queue.replication()
    if replication.num_replicas < needed or not replication.is_primary:
        detail = _no_replicas(needed, replication)
        return problem(503, "REPLICAS_MISSING", detail, fault=Fault.OPERATOR)
    if not deps.queue.num_workers():
        detail = "no worker has reported in; start one with: python -P -m memgate_worker"
        return problem(503, "NO_WORKER", detail, fault=Fault.OPERATOR)
    levels = deps.queue.sandboxes()
    sandbox = {"sandbox": ", ".join(levels)} if levels else {}
    if (runtime := deps.queue.missing_runtime()) is not None:
        return JSONResponse({"status": "degraded"} | sandbox | _no_runtime(runtime))
    if memory.loses_entries:
        return JSONResponse({"status": "degraded"} | sandbox | _loses_entries(memory))
    if not needed and (replication.num_replicas or deps.settings.replicas == UNCONFIRMED):
        return JSONResponse({"status": "degraded"} | sandbox | _unconfirmed(replication))
    if deps.queue.lacks_sandbox():
        return JSONResponse({"status": "degraded"} | sandbox | _TOO_WEAK)
    return JSONResponse({"status": "ready"} | sandbox)


#: the same as the jobs' own error, which says what is wrong with the machine
_TOO_WEAK = {
    "code": "SANDBOX_TOO_WEAK",
    "detail": "a worker's machine lacks the sandbox that MEMGATE_SANDBOX or MEMGATE_SANDBOX_LEVEL"
    " demands, so it runs no job; what is missing there is said by: memgate doctor --sandbox",
}


def _no_room(memory: ServerMemory) -> str:
    return (
        f"the queue's server has used the {format_size(memory.max_bytes)} that it may use: nothing"
        " new can be stored. Raise its maxmemory, or lower MEMGATE_MAX_JOBS,"
        " MEMGATE_MAX_TIMELINES_BYTES or MEMGATE_MAX_UPLOADS_BYTES"
    )


def _no_replicas(needed: int, replication: Replication) -> str:
    if not replication.is_primary:
        return (
            "the queue's server is a replica, which takes nothing new; check that MEMGATE_REDIS_URL"
            " leads to the primary"
        )
    return (
        f"the queue's server shows {replication.num_replicas} replicas, and a question is accepted"
        f" once {needed} have it (MEMGATE_REPLICAS), so nothing new is accepted. Start a replica;"
        " for a managed address that hides its replicas set MEMGATE_REPLICAS to 'unconfirmed'"
    )


def _unconfirmed(replication: Replication) -> dict[str, str]:
    detail = "what was accepted just before the queue's server fails over may be lost:" + (
        f" it has {replication.num_replicas} replicas that are not asked to confirm it; set"
        " MEMGATE_REPLICAS to 1"
        if replication.num_replicas
        else " MEMGATE_REPLICAS is 'unconfirmed', since the server cannot confirm. Callers ask"
        " again for what is gone (404, UNKNOWN_JOB)"
    )
    return {"code": "UNCONFIRMED", "detail": detail}


def _loses_entries(memory: ServerMemory) -> dict[str, str]:
    detail = (
        "the queue's server drops what was accepted once it has used"
        f" {format_size(memory.max_bytes)} (maxmemory-policy {memory.policy}); set"
        " maxmemory-policy noeviction"
    )
    return {"code": "STORE_EVICTS", "detail": detail}


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
