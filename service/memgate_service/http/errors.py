"""Errors -> problem documents (RFC 9457), here and nowhere else. docs/errors.md lists all codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from memgate.contract import (
    INTERNAL,
    Failure,
    NotConfirmedError,
    NotYoursError,
    QueueFullError,
    UnknownJobError,
)
from memgate.errors import Fault, InputError, MemgateError
from memgate.mistakes import Mistake, describe
from memgate.validation import explain_errors
from memgate_worker.queue.client import NoReplicasError, QueueError, StoreDiskError, StoreFullError

_log = structlog.get_logger("memgate.service")

_STATUS_OF_FAULT = {
    Fault.CALLER: 422,
    Fault.JOB: 422,
    Fault.UNSUPPORTED: 422,
    Fault.OPERATOR: 503,
    Fault.PASSING: 503,
}

#: codes with a more exact status. The last two also pass, but no program should retry by itself:
#: somebody ended the job on purpose, or it is a bug of ours
_STATUS_OF_CODE = {
    UnknownJobError.code: 404,
    NotYoursError.code: 403,
    QueueFullError.code: 429,
    "CANCELED": 409,
    INTERNAL: 500,
}

#: when to ask again, unless a better time is known
_RETRY_SECONDS = 5

#: the code of a refusal that has none of its own
CODE_OF_STATUS = {
    400: "BAD_REQUEST",
    401: "NO_KEY",
    403: "NOT_ALLOWED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "TOO_SLOW",
    413: "TOO_LARGE",
    415: "WRONG_CONTENT_TYPE",
    422: InputError.code,
    429: "TOO_MANY_REQUESTS",
    431: "HEADERS_TOO_LARGE",
    500: INTERNAL,
}


#: the page that explains each code
ERRORS_PATH = "/docs/errors"


def type_of(code: str) -> str:
    """Return the type of a problem document: where its code is explained."""
    return f"{ERRORS_PATH}#{code.lower()}"


class ProblemError(Exception):
    """A refusal with a status and a code of its own."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "",
        fault: Fault | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.fault = fault or _fault_of_status(status)
        self.status = status
        self.detail = detail
        self.code = code or CODE_OF_STATUS[status]
        self.headers = headers or {}
        self.more = more


def _fault_of_status(status: int) -> Fault:
    """Say whose fault a refusal is if it does not say so itself."""
    return Fault.PASSING if status >= 500 or status == 429 else Fault.CALLER


def status_of(code: str, fault: Fault) -> int:
    """Return the status of an error: its fault's, unless its code has a more exact one."""
    return _STATUS_OF_CODE.get(code, _STATUS_OF_FAULT[fault])


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    fault: Fault | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Response:
    """Make a problem document; only a passing problem says when to ask again."""
    fault = fault or _fault_of_status(status)
    headers = headers or {}
    if fault is Fault.PASSING and status in (429, 503):
        headers = {"Retry-After": str(_RETRY_SECONDS)} | headers
    document = {
        "type": type_of(code),
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "fault": fault,
    }
    return JSONResponse(
        document | more, status, headers=headers, media_type="application/problem+json"
    )


def problem_of_job(job_id: str, error: Failure) -> Response:
    """Say why a job has no answer."""
    status = status_of(error.code, error.fault)
    headers = {"Location": f"/jobs/{job_id}"}
    more: dict[str, Any] = {"job": job_id} | _with_mistakes(error.mistakes)
    return problem(status, error.code, error.message, fault=error.fault, headers=headers, **more)


def wrong_fields(found: Iterable[Any], model: type[BaseModel] | None = None) -> ProblemError:
    """Turn what pydantic found in a request, or in a part of it, into a refusal."""
    named = ({**one, "loc": _without_place(one["loc"])} for one in found)
    mistakes = explain_errors(named, model)
    return ProblemError(422, describe(mistakes), **_with_mistakes(mistakes))


def wrong_body(rule: str) -> ProblemError:
    """Refuse a body as a whole."""
    mistake = Mistake(field="", value="", rule=rule)
    return ProblemError(422, f"the request {rule}", **_with_mistakes([mistake]))


def _with_mistakes(mistakes: Sequence[Mistake]) -> dict[str, Any]:
    return {"errors": [asdict(one) for one in mistakes]} if mistakes else {}


def unknown_problem(error: Exception) -> Response:
    """Answer for an unforeseen error; the log has the details."""
    _log.error("failed", error=type(error).__name__, exc_info=error)
    return problem(500, INTERNAL, "memgate failed; the log of the service says why")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error with a problem document; ``Envelope`` handles unforeseen ones."""
    app.add_exception_handler(MemgateError, _memgate)
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(QueueError, _redis)


def _memgate(_: Request, error: Exception) -> Response:
    assert isinstance(error, MemgateError)
    status = status_of(error.code, error.fault)
    more = _with_mistakes(error.mistakes)
    return problem(status, error.code, error.message, fault=error.fault, **more)


def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return problem(
        error.status,
        error.code,
        error.detail,
        fault=error.fault,
        headers=error.headers,
        **error.more,
    )


def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _problem(request, wrong_fields(error.errors()))


def _without_place(where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return where[1:] if where and where[0] in ("body", "query", "path", "header") else where


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODE_OF_STATUS.get(error.status_code, "HTTP_ERROR")
    headers = dict(error.headers) if error.headers else None
    return problem(error.status_code, code, str(error.detail), headers=headers)


def _redis(_: Request, error: Exception) -> Response:
    if isinstance(error, StoreFullError):
        detail = "the queue's server has used the memory that it may use; the operator must act"
        return problem(503, "STORE_FULL", detail, fault=Fault.OPERATOR)
    if isinstance(error, StoreDiskError):
        detail = "the queue's server cannot write to its disk; the operator must act"
        return problem(503, "STORE_DISK_FULL", detail, fault=Fault.OPERATOR)
    if isinstance(error, NoReplicasError):
        detail = "the queue's server has lost its replicas and takes nothing new; ask again"
        return problem(503, NotConfirmedError.code, detail, headers={"Retry-After": "2"})
    name = type(error).__name__
    detail = f"the queue cannot be reached ({name}); ask again: no question runs twice"
    return problem(503, "QUEUE_UNREACHABLE", detail, headers={"Retry-After": "2"})
