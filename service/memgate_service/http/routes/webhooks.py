"""``POST /webhooks/kubernetes/validate`` and ``/mutate``: an AdmissionReview in, one out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from memgate_service.admission.core.asking import Patience, read_patience
from memgate_service.admission.kubernetes import gate
from memgate_service.admission.kubernetes.review import Answer, Review, read_review, write_review
from memgate_service.http.access import needs
from memgate_service.http.bodies import JSON, json_body
from memgate_service.http.dependencies import Parts, TheParts
from memgate_service.http.errors import ProblemError
from memgate_service.http.openapi import PROBLEMS, WRONG_TYPE, review_bodies
from memgate_worker.queue.keys import Role

webhooks = APIRouter(
    prefix="/webhooks/kubernetes",
    tags=["webhooks"],
    dependencies=[Depends(needs(Role.SUBMIT))],
    responses=PROBLEMS | WRONG_TYPE,
)

Timeout = Annotated[
    str | None,
    Query(description="How long the API server waits, as it says it.", examples=["10s"]),
]


@webhooks.post("/validate", openapi_extra=review_bodies())
async def validate(request: Request, parts: TheParts, timeout: Timeout = None) -> Response:
    """Shall this object be let in? Those without the annotation `memgate.dev/job` are."""
    return await _answer(request, parts, timeout, gate.validate)


@webhooks.post("/mutate", openapi_extra=review_bodies())
async def mutate(request: Request, parts: TheParts, timeout: Timeout = None) -> Response:
    """Fill in what this object's scheduler should know, and hold it while there is no answer."""
    return await _answer(request, parts, timeout, gate.mutate)


async def _answer(
    request: Request,
    parts: Parts,
    timeout: str | None,
    decide: Callable[[Parts, Review, Patience], Awaitable[Answer]],
) -> Response:
    review = read_review(await json_body(request))
    patience = read_patience(timeout, parts.settings.admission_wait_seconds)
    try:
        answer = await decide(parts, review, patience)
    except RecursionError:
        raise ProblemError(422, "the object is nested too deeply") from None
    if answer.notes:
        request.state.admission = answer.notes
    return Response(write_review(review, answer), media_type=JSON)
