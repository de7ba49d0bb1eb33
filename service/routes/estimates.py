"""``POST /estimate``, ``/fit`` and ``/max-batch``: the questions."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.gpus import parse_gpu
from memgate.max_batch import MaxBatch
from memgate.report import Estimate, Fit
from service.access import needs
from service.errors import ProblemError
from service.parts import Parts, TheParts
from service.questions import Prefer, ask
from service.remembered import cache_key
from service.schemas import EstimateCreate, FitCreate, Problem, TraceEstimateCreate
from worker.contract import WorkKind
from worker.keys import Role

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        401: "No key, or none that is in force.",
        403: "A key whose role may not do this.",
        408: "The request took too long to come in.",
        413: "The request is too long.",
        415: "Neither JSON nor multipart.",
        422: "Something in it is wrong: the problem names the field, the value and the rule.",
        429: "Too many requests, or too many jobs wait; `Retry-After` says when to come back.",
        503: "The queue cannot be reached, or too many clients wait.",
    }.items()
}
_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"description": "Not answered yet: `Location` says where it will be."}
}

estimates = APIRouter(
    tags=["questions"], dependencies=[Depends(needs(Role.SUBMIT))], responses=PROBLEMS | _ACCEPTED
)


def _body(model: type[Any], *, upload: type[Any] | None = None) -> dict[str, Any]:
    """Describe a body that the handler reads by itself."""
    content: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    }
    if upload is not None:
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "required": ["request", "trace"],
                "properties": {
                    "request": {"$ref": f"#/components/schemas/{upload.__name__}"},
                    "trace": {"type": "string", "format": "binary"},
                },
            },
            "encoding": {"request": {"contentType": "application/json"}},
        }
    return {"requestBody": {"required": True, "content": content}}


@estimates.post(
    "/estimate",
    response_model=Estimate,
    openapi_extra=_body(EstimateCreate, upload=TraceEstimateCreate),
)
async def create_estimate(request: Request, parts: TheParts, prefer: Prefer = None) -> Response:
    """Will this job, or the job of this trace, fit on that GPU?"""
    kind = content_type(request)
    if kind == "multipart/form-data":
        return await _from_trace(request, parts, prefer)
    return await _from_json(request, parts, prefer, EstimateCreate, WorkKind.ESTIMATE)


@estimates.post("/max-batch", response_model=MaxBatch, openapi_extra=_body(EstimateCreate))
async def create_max_batch(request: Request, parts: TheParts, prefer: Prefer = None) -> Response:
    """What is the largest batch of this job that is admitted on that GPU?"""
    return await _from_json(request, parts, prefer, EstimateCreate, WorkKind.MAX_BATCH)


@estimates.post("/fit", response_model=Fit, openapi_extra=_body(FitCreate))
async def create_fit(request: Request, parts: TheParts, prefer: Prefer = None) -> Response:
    """On which GPUs of the catalogue does this job fit?"""
    return await _from_json(request, parts, prefer, FitCreate, WorkKind.FIT)


def content_type(request: Request) -> str:
    """Return what a body is said to be; refuse what is packed."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ProblemError(415, "a request may not be packed; a trace in it may, as .json.gz")
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _from_json(
    request: Request,
    parts: Parts,
    prefer: str | None,
    model: type[EstimateCreate] | type[FitCreate],
    kind: WorkKind,
) -> Response:
    if content_type(request) != "application/json":
        raise ProblemError(415, "send a request as application/json")
    body = await request.body()
    asked = read_json(model, body)
    work = asked.work(kind) if isinstance(asked, EstimateCreate) else asked.work()
    if work.gpu is not None:
        parse_gpu(work.gpu.model_dump(exclude_none=True))
    return await ask(request, parts, work, asked.priority, prefer=prefer, key=cache_key(kind, body))


def read_json(model: type[Any], body: bytes | str) -> Any:
    """Check a body.

    Raises:
        ProblemError: if it is no JSON.
        ValidationError: if it is another document; answered with each field.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise ProblemError(
                422, f"not JSON: {error.errors()[0]['msg']}", code="BAD_INPUT"
            ) from None
        raise


async def _from_trace(request: Request, parts: Parts, prefer: str | None) -> Response:
    async with request.form(max_files=1, max_fields=1) as form:
        asked, upload = form.get("request"), form.get("trace")
        if not isinstance(asked, str) or not isinstance(upload, UploadFile):
            raise ProblemError(
                422, "send the field 'request' (JSON) and the file 'trace'", code="BAD_INPUT"
            )
        create = read_json(TraceEstimateCreate, asked)
        data = await upload.read()
    parse_alloc_conf(create.allocator)
    gpu = create.gpu if isinstance(create.gpu, str) else create.gpu.model_dump(exclude_none=True)
    parse_gpu(gpu)
    name = await anyio.to_thread.run_sync(parts.queue.store.save_trace, data)
    return await ask(request, parts, create.work(name), create.priority, prefer=prefer)
