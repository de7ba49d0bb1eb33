"""Errors -> problem documents (RFC 9457), here and nowhere else. docs/errors.md lists all codes."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from memgate_worker.queue.client import QueueError
from starlette.exceptions import HTTPException

from memgate.contract import JobError, QueueFullError, UnknownJobError
from memgate.errors import EngineError, InputError, MemgateError, ProcessLostError

_log = structlog.get_logger("memgate.service")

#: the most special class first
_STATUS: dict[type[MemgateError], int] = {
    UnknownJobError: 404,
    QueueFullError: 429,
    InputError: 422,
    ProcessLostError: 503,
    EngineError: 422,
}

#: of jobs that failed through no fault of the caller's
_STATUS_OF_CODE = {
    "INTERNAL": 500,
    "SIMULATION_BROKEN": 500,
    "PROCESS_LOST": 503,
    "WORKERS_LOST": 503,
    "CANCELED": 409,
}

#: of what is refused for no reason of its own
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
    500: "INTERNAL",
}

#: how many wrong fields an answer names: one byte of a request may make one of them wrong
_MAX_NAMED = 20


class ProblemError(Exception):
    """A refusal with a status and a code of its own."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "",
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or CODE_OF_STATUS[status]
        self.headers = headers or {}
        self.more = more


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Response:
    """Make a problem document."""
    document = {
        "type": f"https://memgate.dev/errors#{code.lower()}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
    }
    return JSONResponse(
        document | more, status, headers=headers, media_type="application/problem+json"
    )


def problem_of_job(job_id: str, error: JobError) -> Response:
    """Tell why a job has no answer."""
    status = _STATUS_OF_CODE.get(error.code, 422)
    headers = {"Location": f"/jobs/{job_id}"} | ({"Retry-After": "5"} if status == 503 else {})
    return problem(status, error.code, error.message, headers=headers, job=job_id)


def wrong_fields(found: Iterable[Any]) -> ProblemError:
    """Make a refusal of what pydantic found: each field, its value and the rule."""
    errors = list(found)
    named = [
        {
            "field": ".".join(map(str, _without_place(one["loc"]))),
            "rule": one["msg"].removeprefix("Value error, "),
            "value": _short(one.get("input")),
        }
        for one in errors[:_MAX_NAMED]
    ]
    first = named[0]
    where = first["field"] or "the request"
    is_missing = errors[0]["type"] == "missing"
    detail = (
        f"{where} is missing" if is_missing else f"{where} is {first['value']}: {first['rule']}"
    )
    return ProblemError(422, detail, errors=named)


def unknown_problem(error: Exception) -> Response:
    """Answer for what we did not foresee; the log has it all."""
    _log.error("failed", error=type(error).__name__, exc_info=error)
    return problem(500, "INTERNAL", "memgate failed; the log of the service says why")


def add_error_handlers(app: FastAPI) -> None:
    """Have every error answered as a problem document; ``Envelope`` sees to those unforeseen."""
    app.add_exception_handler(MemgateError, _memgate)
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(QueueError, _redis)


def _memgate(_: Request, error: Exception) -> Response:
    assert isinstance(error, MemgateError)
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    headers = {"Retry-After": "5"} if status in (429, 503) else None
    return problem(status, error.code, error.message, headers=headers)


def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return problem(error.status, error.code, error.detail, headers=error.headers, **error.more)


def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _problem(request, wrong_fields(error.errors()))


def _without_place(where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    return where[1:] if where and where[0] in ("body", "query", "path", "header") else where


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODE_OF_STATUS.get(error.status_code, "HTTP_ERROR")
    headers = dict(error.headers) if error.headers else None
    return problem(error.status_code, code, str(error.detail), headers=headers)


def _redis(_: Request, error: Exception) -> Response:
    name = type(error).__name__
    detail = f"the queue cannot be reached ({name}); ask again: no question is asked twice"
    return problem(503, "QUEUE_UNREACHABLE", detail, headers={"Retry-After": "2"})
