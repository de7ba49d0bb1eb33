"""``POST /estimate``, ``/fit`` and ``/max-batch``: the questions."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from memgate.contract import WorkKind
from memgate.jobspec import check_supported
from memgate.max_batch import MaxBatch
from memgate.report import Estimate, Fit
from memgate.schemas import EstimateCreate, FitCreate, TraceEstimateCreate
from memgate_service.http.access import needs
from memgate_service.http.bodies import MULTIPART, content_type, json_body, read_json
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.errors import ProblemError
from memgate_service.http.openapi import ACCEPTED, CANCELED, PROBLEMS, WRONG_TYPE, body_of
from memgate_service.http.questions import Prefer, ask
from memgate_service.http.response_cache import cache_key
from memgate_worker.queue.keys import Role

#: uploads that are in memory at the same time; others wait on disk
_uploads = anyio.CapacityLimiter(2)

estimates = APIRouter(
    tags=["questions"],
    dependencies=[Depends(needs(Role.SUBMIT))],
    responses=PROBLEMS | WRONG_TYPE | CANCELED | ACCEPTED,
)


@estimates.post(
    "/estimate",
    response_model=Estimate,
    openapi_extra=body_of(EstimateCreate, upload=TraceEstimateCreate),
)
async def create_estimate(request: Request, deps: Deps, prefer: Prefer = None) -> Response:
    """Will this job, or the job of this trace or memory snapshot, fit on that GPU?"""
    if content_type(request) == MULTIPART:
        return await _from_trace(request, deps, prefer)
    return await _from_json(request, deps, prefer, EstimateCreate, WorkKind.ESTIMATE)


@estimates.post("/max-batch", response_model=MaxBatch, openapi_extra=body_of(EstimateCreate))
async def create_max_batch(request: Request, deps: Deps, prefer: Prefer = None) -> Response:
    """What is the largest batch of this job that is admitted on that GPU?"""
    return await _from_json(request, deps, prefer, EstimateCreate, WorkKind.MAX_BATCH)


@estimates.post("/fit", response_model=Fit, openapi_extra=body_of(FitCreate))
async def create_fit(request: Request, deps: Deps, prefer: Prefer = None) -> Response:
    """On which GPUs of the catalogue does this job fit?"""
    return await _from_json(request, deps, prefer, FitCreate, WorkKind.FIT)


async def _from_json(
    request: Request,
    deps: Dependencies,
    prefer: str | None,
    model: type[EstimateCreate] | type[FitCreate],
    kind: WorkKind,
) -> Response:
    body = await json_body(request)
    asked = read_json(model, body)
    check_supported(asked.job)
    work = asked.work(kind) if isinstance(asked, EstimateCreate) else asked.work()
    if work.gpu is not None:
        work.gpu.target()  # refuses a name that the catalogue does not have
    return await ask(request, deps, work, asked.priority, prefer=prefer, key=cache_key(kind, body))


async def _from_trace(request: Request, deps: Dependencies, prefer: str | None) -> Response:
    form = await _form(request)
    try:
        # which of the two it is, its content says
        asked, upload = form.get("request"), form.get("trace") or form.get("snapshot")
        if isinstance(asked, UploadFile):  # with a file name, as some clients send it
            asked = (await asked.read(deps.settings.max_body_bytes)).decode(errors="replace")
        if not isinstance(asked, str) or not isinstance(upload, UploadFile):
            raise ProblemError(
                422, "send the field 'request' (JSON) and the file 'trace' or 'snapshot'"
            )
        create = read_json(TraceEstimateCreate, asked)
        create.gpu.target()  # refuses a name that the catalogue does not have
        async with _uploads:
            data = await upload.read()
            name = await anyio.to_thread.run_sync(deps.queue.save_trace, data)
    finally:
        await form.close()
    return await ask(request, deps, create.work(name), create.priority, prefer=prefer)


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_files=2, max_fields=1)
    except HTTPException as error:  # from the form parser
        raise ProblemError(422, f"not a multipart form: {error.detail}") from None
