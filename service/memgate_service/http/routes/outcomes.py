"""``POST /outcomes`` and ``GET /accuracy``: what jobs really took, and how accurate we were."""

from __future__ import annotations

from math import ceil

import anyio.to_thread
from fastapi import APIRouter, Depends, Request

from memgate.contract import JobRecord, Work
from memgate.report import Estimate
from memgate.schemas import AccuracyRead, OutcomeCreate
from memgate.verdict import MARGIN, MAX_CONTEXT_BYTES, USUAL_CONTEXT_BYTES
from memgate_service.http.access import needs
from memgate_service.http.bodies import json_body, read_json
from memgate_service.http.calibration import compare_outcomes, count_outcome
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.errors import ProblemError
from memgate_service.http.openapi import NOT_FOUND, PROBLEMS, WRONG_TYPE, body_of
from memgate_service.http.ownership import actor_of
from memgate_worker.queue.client import MeasuredOutcome
from memgate_worker.queue.keys import Right

outcomes = APIRouter(tags=["outcomes"], responses=PROBLEMS)


@outcomes.post(
    "/outcomes",
    status_code=201,
    dependencies=[Depends(needs(Right.OUTCOMES))],
    responses=NOT_FOUND | WRONG_TYPE,
    openapi_extra=body_of(OutcomeCreate),
)
async def create_outcome(request: Request, deps: Deps) -> MeasuredOutcome:
    """Report what a job of one's own that was estimated really took."""
    outcome = read_json(OutcomeCreate, await json_body(request))
    record = await deps.asked.read_soon(outcome.job)
    actor_of(request).check_reports(record)
    return await anyio.to_thread.run_sync(_store, deps, record, outcome)


def _store(deps: Dependencies, record: JobRecord, outcome: OutcomeCreate) -> MeasuredOutcome:
    said = record.estimate
    if said is None:
        detail = f"job {record.id} is not an estimate that was answered: nothing to compare with"
        raise ProblemError(422, detail)
    gpu = outcome.gpu_product or (record.work.gpu.name if record.work.gpu else None)
    is_reserved_only = outcome.is_reserved_only
    stored = MeasuredOutcome(
        job=record.id,
        model=_family(record.work),
        gpu=gpu or "described",
        predicted_peak_bytes=(
            said.peak_reserved_on_gpu_bytes if is_reserved_only else said.peak_on_gpu_bytes
        ),
        upper_bound_bytes=said.needs_bytes,
        measured_peak_bytes=outcome.measured_peak_bytes,
        ran_out=outcome.ran_out,
        peak_bound_bytes=_peak_bound(said, is_reserved_only=is_reserved_only),
        decision=said.decision if _is_the_same(record, outcome) else None,
        capacity_bytes=said.capacity_bytes,
    )
    deps.queue.add_outcome(stored)
    count_outcome(deps.queue, stored, said.decision)
    return stored


def _peak_bound(said: Estimate, *, is_reserved_only: bool) -> int:
    """Return the most that should be measured: with the margin, and the largest known context.

    What the allocator reserved may exceed its prediction by as much as the whole process may.
    """
    beside = MAX_CONTEXT_BYTES - USUAL_CONTEXT_BYTES if is_reserved_only else MAX_CONTEXT_BYTES
    if not is_reserved_only:
        beside += said.communication_range.high_bytes
    return ceil(said.peak_reserved_on_gpu_bytes * (1 + MARGIN)) + beside


def _is_the_same(record: JobRecord, outcome: OutcomeCreate) -> bool:
    """Say whether a job ran on the GPU that it was estimated for."""
    if outcome.gpu_product is None or record.work.gpu is None:
        return True
    gpu = record.work.target.gpu
    return outcome.gpu_product in (gpu.name, gpu.product)


def _family(work: Work) -> str:
    if work.job is None:
        return "trace"
    return work.job.model.title


@outcomes.get("/accuracy", dependencies=[Depends(needs(Right.READ_OWN))])
def read_accuracy(deps: Deps) -> AccuracyRead:
    """Compare what was predicted with what was measured."""
    return compare_outcomes(deps.queue.outcomes())
