"""A policy object that somebody writes -> let in or refused, and what the status of one says.

The schema of the kinds refuses most mistakes; this knows the rest, and what has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from memgate_service.admission.core.layers import PolicyLayers, find_ineffective
from memgate_service.admission.core.rules import PolicyError
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.policy_resources import (
    RESOURCES,
    PolicyState,
    read_policy,
)
from memgate_service.admission.kubernetes.review import Review, WebhookAnswer

_ACCEPTED = "Accepted"


def review_policy(review: Review, layers: PolicyLayers) -> WebhookAnswer:
    """Refuse a policy that cannot be read; warn of what has no effect in it."""
    kind = review.kind.name
    if kind not in RESOURCES or review.object is None:
        return WebhookAnswer(allowed=True)
    try:
        part = read_policy(kind, review.object)
    except PolicyError as error:
        return WebhookAnswer(allowed=False, message=f"memgate: {error.message}")
    notes = find_ineffective(layers, part)
    return WebhookAnswer(allowed=True, warnings=[f"memgate: no effect: {note}" for note in notes])


def make_status(state: PolicyState, layers: PolicyLayers, now: datetime) -> dict[str, Any] | None:
    """Return an object's status; None if it is right as it is."""
    generation = as_object(state.document.get("metadata")).get("generation", 1)
    condition = _condition(state, layers) | {"observedGeneration": generation}
    known = _find_condition(state.document)
    if {name: known.get(name) for name in condition} == condition:
        return None
    is_same = known.get("status") == condition["status"]
    since = known.get("lastTransitionTime") if is_same else None
    condition["lastTransitionTime"] = since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"observedGeneration": generation, "conditions": [condition]}


def _condition(state: PolicyState, layers: PolicyLayers) -> dict[str, Any]:
    if not state.problem:
        assert state.part is not None
        notes: Sequence[str] = find_ineffective(layers, state.part)
        reason = "AppliedInPart" if notes else "Applied"
        message = "; ".join(notes) or "it is in force"
        return {"type": _ACCEPTED, "status": "True", "reason": reason, "message": message[:1024]}
    kept = "its last good version stays in force" if state.part else "nothing of it is in force"
    message = f"{state.problem}; {kept}"
    return {"type": _ACCEPTED, "status": "False", "reason": "Wrong", "message": message[:1024]}


def _find_condition(document: JsonObject) -> dict[str, Any]:
    conditions = map(as_object, as_list(as_object(document.get("status")).get("conditions")))
    return next((dict(one) for one in conditions if one.get("type") == _ACCEPTED), {})
