"""Errors -> pages, if a person's browser asked for one; programs still get problem documents.

Nothing is decided here: the handlers of ``http.errors`` say what is wrong, and this shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from memgate.errors import MemgateError
from memgate_service.dashboard.rendering import render
from memgate_service.dashboard.viewers import Viewers
from memgate_service.http.errors import ProblemError
from memgate_worker.queue.client import QueueError

_KINDS = (MemgateError, ProblemError, RequestValidationError, HTTPException, QueueError)

Handler = Callable[[Request, Exception], Response]

_TITLES = {
    404: "Not found",
    429: "Too many requests",
    503: "Not available at the moment",
}


def add_error_pages(app: FastAPI) -> None:
    """Show errors as pages; call this when all handlers are registered."""
    for kind in _KINDS:
        known: Any = app.exception_handlers[kind]
        app.add_exception_handler(kind, _shown(known))


def _shown(handler: Handler) -> Handler:
    def answer(request: Request, error: Exception) -> Response:
        said = handler(request, error)
        return _page(request, said) if _is_persons(request, error) else said

    return answer


def _is_persons(request: Request, error: Exception) -> bool:
    """Say whether somebody followed a link to a page, or to a path that does not exist."""
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return False
    is_page = request.url.path == "/" or request.url.path.startswith("/ui/")
    return is_page or (isinstance(error, HTTPException) and error.status_code == 404)


def _page(request: Request, said: Response) -> Response:
    document = json.loads(bytes(said.body))
    status, message = said.status_code, document["detail"]
    if job := request.path_params.get("job_id"):
        if status == 422:
            status, message = 404, f"There is no job {job[:64]!r}: ids have 32 digits and letters."
    elif status == 404:
        message = f"There is no page {request.url.path[:100]!r}."
    viewers: Viewers = request.app.state.viewers
    page = render(
        request,
        "failure.html",
        getattr(request.state, "viewer", None) or viewers.anybody,
        status=status,
        title=_TITLES.get(status, "That did not work"),
        message=message,
        code=document["code"],
        comes_back=status == 503 and "retry-after" in said.headers,
    )
    if "retry-after" in said.headers:
        page.headers["retry-after"] = said.headers["retry-after"]
    return page
