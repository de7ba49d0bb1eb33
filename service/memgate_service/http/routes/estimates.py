"""``POST /estimate``, ``/fit`` and ``/max-batch``: the questions."""

from __future__ import annotations

from typing import TypeVar

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from memgate.contract import WorkKind
from memgate.file_kinds import HEAD_BYTES, FileKind, find_file_kind
from memgate.gunzip import peek_unpacked
from memgate.jobspec import check_supported
from memgate.max_batch import MaxBatch
from memgate.report import Estimate, Fit
from memgate.schemas import EstimateCreate, FitCreate, TimelineFitCreate, TraceEstimateCreate
from memgate.timeline_file.document import HEADER_BYTES
from memgate.timeline_file.reading import read_version
from memgate.worlds import fill_question
from memgate_service.http.access import needs
from memgate_service.http.bodies import MULTIPART, content_type, json_body, read_json
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.errors import ProblemError
from memgate_service.http.openapi import (
    ACCEPTED,
    CANCELED,
    PROBLEMS,
    TIMELINE_PARTS,
    UPLOAD_PARTS,
    WRONG_TYPE,
    body_of,
)
from memgate_service.http.ownership import owner_of
from memgate_service.http.questions import Prefer, ask
from memgate_service.http.response_cache import cache_key
from memgate_worker.queue.keys import Right

#: uploads that are copied to the store at the same time; others wait on disk
_uploads = anyio.CapacityLimiter(2)

estimates = APIRouter(
    tags=["questions"],
    dependencies=[Depends(needs(Right.SUBMIT))],
    responses=PROBLEMS | WRONG_TYPE | CANCELED | ACCEPTED,
)


@estimates.post(
    "/estimate",
    response_model=Estimate,
    openapi_extra=body_of(EstimateCreate, upload=TraceEstimateCreate, parts=UPLOAD_PARTS),
)
async def create_estimate(request: Request, deps: Deps, prefer: Prefer = None) -> Response:
    """Will this job, or the job of this trace, snapshot or timeline file, fit on that GPU?"""
    if content_type(request) == MULTIPART:
        return await _from_upload(request, deps, prefer, TraceEstimateCreate, UPLOAD_PARTS)
    return await _from_json(request, deps, prefer, EstimateCreate, WorkKind.ESTIMATE)


@estimates.post("/max-batch", response_model=MaxBatch, openapi_extra=body_of(EstimateCreate))
async def create_max_batch(request: Request, deps: Deps, prefer: Prefer = None) -> Response:
    """What is the largest batch of this job that is admitted on that GPU?"""
    return await _from_json(request, deps, prefer, EstimateCreate, WorkKind.MAX_BATCH)


@estimates.post(
    "/fit",
    response_model=Fit,
    openapi_extra=body_of(FitCreate, upload=TimelineFitCreate, parts=TIMELINE_PARTS),
)
async def create_fit(request: Request, deps: Deps, prefer: Prefer = None) -> Response:
    """On which GPUs of the catalogue does this job, or the job of this timeline file, fit?"""
    if content_type(request) == MULTIPART:
        return await _from_upload(request, deps, prefer, TimelineFitCreate, TIMELINE_PARTS)
    return await _from_json(request, deps, prefer, FitCreate, WorkKind.FIT)


async def _from_json(
    request: Request,
    deps: Dependencies,
    prefer: str | None,
    model: type[EstimateCreate] | type[FitCreate],
    kind: WorkKind,
) -> Response:
    body = await json_body(request)
    asked = read_json(model, _with_world(body) if model is EstimateCreate else body)
    check_supported(asked.job)
    work = asked.work(kind) if isinstance(asked, EstimateCreate) else asked.work()
    if work.gpu is not None:
        work.gpu.target()  # refuses a name that the catalogue does not have
    return await ask(request, deps, work, asked.priority, prefer=prefer, key=cache_key(kind, body))


def _with_world(body: bytes) -> bytes:
    """Return a body with the number of GPUs in the job's spec, if only ``gpu.count`` says it."""
    if b'"count"' not in body:
        return body
    try:
        question = msgspec.json.decode(body, type=dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body  # which is refused where it is read
    filled = fill_question(question)
    return body if filled is question else msgspec.json.encode(filled)


_Upload = TypeVar("_Upload", TraceEstimateCreate, TimelineFitCreate)


async def _from_upload(
    request: Request,
    deps: Dependencies,
    prefer: str | None,
    model: type[_Upload],
    parts: tuple[str, ...],
) -> Response:
    form = await _form(request)
    try:
        asked = form.get("request")
        sent = [part for part in parts if isinstance(form.get(part), UploadFile)]
        if isinstance(asked, UploadFile):  # with a file name, as some clients send it
            asked = (await asked.read(deps.settings.max_body_bytes)).decode(errors="replace")
        if not isinstance(asked, str) or len(sent) != 1:
            names = " or ".join(repr(part) for part in parts)
            raise ProblemError(422, f"send the field 'request' (JSON) and one file, {names}")
        create = read_json(model, asked)
        if isinstance(create, TraceEstimateCreate):
            create.gpu.target()  # refuses a name that the catalogue does not have
        upload = form[sent[0]]
        assert isinstance(upload, UploadFile)
        async with _uploads:
            head = await upload.read(HEAD_BYTES)
            _check_timeline(head, is_meant=sent[0] == "timeline")
            caller = owner_of(request).caller
            file = upload.file
            name = await anyio.to_thread.run_sync(deps.queue.save_trace, file, caller)
    finally:
        await form.close()
    return await ask(request, deps, create.work(name), create.priority, prefer=prefer)


def _check_timeline(head: bytes, *, is_meant: bool) -> None:
    """Refuse a timeline file by its first bytes if that is enough; the worker checks the rest.

    What an upload is, its content says; but what is sent as a timeline must be one.

    Raises:
        TimelineFileError: if it is not one, or of a format that is not known.
    """
    if is_meant or find_file_kind(head) is FileKind.TIMELINE:
        read_version(peek_unpacked(head, HEADER_BYTES))


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_files=2, max_fields=1)
    except HTTPException as error:  # from the form parser
        raise ProblemError(422, f"not a multipart form: {error.detail}") from None
