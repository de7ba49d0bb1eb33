"""``POST /webhooks/kubernetes/validate`` and ``/mutate``: an AdmissionReview in, one out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from memgate.errors import InputError
from memgate.owner import Owner
from memgate.schemas import JOB_ID
from memgate_service.admission.kubernetes import gate
from memgate_service.admission.kubernetes.events import tell_decision, tell_late
from memgate_service.admission.kubernetes.gate import WebhookGate
from memgate_service.admission.kubernetes.json_parts import as_object
from memgate_service.admission.kubernetes.modes import is_silent
from memgate_service.admission.kubernetes.patches import ESTIMATE_ID
from memgate_service.admission.kubernetes.policy_review import review_policy
from memgate_service.admission.kubernetes.review import (
    Review,
    WebhookAnswer,
    read_review,
    write_review,
)
from memgate_service.http.access import needs
from memgate_service.http.bodies import JSON, json_body
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.openapi import PROBLEMS, WRONG_TYPE, review_bodies
from memgate_service.http.queue_asker import QueueAsker, TimeBudget, read_timeout
from memgate_worker.queue.keys import Right

webhooks = APIRouter(
    prefix="/webhooks/kubernetes",
    tags=["webhooks"],
    dependencies=[Depends(needs(Right.ON_BEHALF))],
    responses=PROBLEMS | WRONG_TYPE,
)

Timeout = Annotated[
    str | None,
    Query(description="How long the API server waits, as it writes it.", examples=["10s"]),
]


@webhooks.post("/validate", openapi_extra=review_bodies())
async def validate(request: Request, deps: Deps, timeout: Timeout = None) -> Response:
    """Let this object in, or refuse it. Without the annotation `memgate.dev/job` it is let in."""
    return await _answer(request, deps, timeout, gate.validate)


@webhooks.post("/mutate", openapi_extra=review_bodies())
async def mutate(request: Request, deps: Deps, timeout: Timeout = None) -> Response:
    """Fill in what this object's scheduler should know, and hold it while there is no answer."""
    return await _answer(request, deps, timeout, gate.mutate)


@webhooks.post("/policies", openapi_extra=review_bodies())
async def policies(request: Request, deps: Deps) -> Response:
    """Let this ClusterMemgatePolicy or MemgatePolicy in; refuse one that cannot be read."""
    review = read_review(await json_body(request))
    answer = review_policy(review, deps.policy.read())
    return Response(write_review(review, answer), media_type=JSON)


async def _look_again(deps: Dependencies, review: Review, asked: dict[str, str]) -> dict[str, Any]:
    """Judge again what was let in without an answer; empty while there is none.

    Nothing is asked: a run that failed would be repeated. ``asked`` has the questions that were.
    """
    asker = QueueAsker(deps, TimeBudget(wait=0.0, limit=10.0), is_dry_run=True, asked=asked)
    made = WebhookGate(settings=deps.settings, do=asker.do, policy=deps.policy.read())
    record = (await gate.validate(made, review)).record
    if record.get("decision") == "unanswered":
        return {}
    deps.events.add(tell_late(_placed(review), record))
    return {name: value for name, value in record.items() if name != "would"} | {"done": "noted"}


def _owner_of(request: Request, deps: Dependencies, review: Review) -> Owner:
    """Return whose question a review asks."""
    metadata = as_object((review.object or {}).get("metadata"))
    name = metadata.get("name") or metadata.get("generateName")
    return Owner(
        key=getattr(request.state, "key", ""),
        cluster=deps.settings.cluster_name,
        namespace=review.namespace,
        user=review.user_info.username,
        job_name=name if isinstance(name, str) else "",
    )


def _noted_id(review: Review) -> str:
    """Return the id that an earlier review noted on the object, if it has the form of one."""
    metadata = as_object((review.object or {}).get("metadata"))
    noted = as_object(metadata.get("annotations")).get(ESTIMATE_ID)
    return noted if isinstance(noted, str) and re.fullmatch(JOB_ID, noted) else ""


def _placed(review: Review) -> dict[str, Any]:
    """Return the object with the namespace that it will be in."""
    document = review.object or {}
    metadata = as_object(document.get("metadata"))
    return document | {"metadata": {**metadata, "namespace": review.namespace}}


async def _answer(
    request: Request,
    deps: Dependencies,
    timeout: str | None,
    decide: Callable[[WebhookGate, Review], Awaitable[WebhookAnswer]],
) -> Response:
    review = read_review(await json_body(request))
    policy = deps.policy.read()
    wait = 0.0 if is_silent(policy, review) else deps.settings.admission_wait_seconds
    asker = QueueAsker(
        deps,
        read_timeout(timeout, wait),
        is_dry_run=review.dry_run,
        owner=_owner_of(request, deps, review),
        noted=_noted_id(review),
    )
    made = WebhookGate(settings=deps.settings, do=asker.do, policy=policy)
    try:
        answer = await decide(made, review)
    except RecursionError:
        raise InputError("the object is nested too deeply") from None
    deps.decisions.add(answer.record)
    deps.events.add(tell_decision(_placed(review), answer.record))
    if answer.allowed and answer.record.get("decision") == "unanswered":
        deps.decisions.follow_up(lambda: _look_again(deps, review, asker.asked))
    if answer.outcome:
        allowed = "yes" if answer.allowed else "no"
        deps.metrics.admissions.labels(answer.outcome, allowed).inc()
    if answer.notes:
        request.state.admission = answer.notes
    return Response(write_review(review, answer), media_type=JSON)
