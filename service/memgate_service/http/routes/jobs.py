"""``/jobs``: the state and the answers of questions, to those who asked them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from memgate.contract import JobRecord, JobState, WorkKind
from memgate.schemas import JOB_ID, JobList
from memgate.views import TimelineView
from memgate_service.http.access import needs
from memgate_service.http.dependencies import Deps
from memgate_service.http.errors import ProblemError
from memgate_service.http.openapi import NOT_FOUND, PROBLEMS
from memgate_service.http.ownership import actor_of
from memgate_service.http.questions import (
    Prefer,
    applied,
    caller_of,
    pending_advice,
    wait_for,
    wait_seconds,
)
from memgate_worker.queue.keys import Right

jobs = APIRouter(tags=["jobs"], prefix="/jobs", responses=PROBLEMS)

JobId = Annotated[str, Path(pattern=JOB_ID, description="As `Location` has it.")]


@jobs.get("", dependencies=[Depends(needs(Right.READ_OWN))])
async def list_jobs(
    request: Request,
    deps: Deps,
    state: Annotated[JobState | None, Query(description="Only these.")] = None,
    kind: Annotated[WorkKind | None, Query(description="Only these.")] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="How many to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=200, description="At most so many.")] = 50,
) -> JobList:
    """Return the caller's questions, the newest first; everybody's with the right read-all.

    Fewer at a time if they are large.
    """
    await deps.asked.flush()  # what was answered from memory a moment ago is listed, too
    found, after = await anyio.to_thread.run_sync(
        partial(
            deps.queue.questions.list,
            actor_of(request).tags,
            offset=offset,
            count=limit,
            state=state,
            kind=kind,
        )
    )
    return JobList(jobs=found, next_offset=after)


@jobs.get("/{job_id}", responses=NOT_FOUND, dependencies=[Depends(needs(Right.READ_OWN))])
async def read_job(
    request: Request, response: Response, job_id: JobId, deps: Deps, prefer: Prefer = None
) -> JobRecord:
    """Return a question in its current state. Can wait for the answer, and for its advice."""
    request.state.job = job_id
    seconds = wait_seconds(prefer, deps.settings.max_wait_seconds)
    response.headers.update(applied(seconds))
    record = await deps.asked.read_soon(job_id)
    actor_of(request).check_sees(record)
    record = await wait_for(deps, record, seconds, with_advice=True, caller=caller_of(request))
    response.headers.update(pending_advice(record))
    return record


@jobs.delete("/{job_id}", responses=NOT_FOUND, dependencies=[Depends(needs(Right.SUBMIT))])
async def cancel_job(request: Request, job_id: JobId, deps: Deps) -> JobRecord:
    """Withdraw a question; its run ends if nobody else has asked the same.

    One that has been answered stays. Others' questions need the right cancel-all.
    """
    request.state.job = job_id
    record = await deps.asked.read_soon(job_id)
    actor_of(request).check_withdraws(record)
    return await anyio.to_thread.run_sync(deps.asked.withdraw, job_id)


@jobs.get(
    "/{job_id}/timeline",
    response_model=TimelineView,
    responses=NOT_FOUND,
    dependencies=[Depends(needs(Right.READ_OWN))],
)
async def read_timeline(request: Request, job_id: JobId, deps: Deps) -> Response:
    """Return the memory curve of an estimate, thinned without losing its peak."""
    record = await deps.asked.read_soon(job_id)
    actor_of(request).check_sees(record)
    view = await anyio.to_thread.run_sync(deps.queue.load_view, record.run_id)
    if view is None:
        detail = f"job {job_id} is {record.state}: only an estimate that is done has a timeline"
        raise ProblemError(404, detail, code="NO_TIMELINE")
    return Response(view, media_type="application/json")
