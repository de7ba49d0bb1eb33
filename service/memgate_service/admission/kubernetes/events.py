"""What was decided about an object -> an event that its owner can see.

Nothing is told in ``audit``; plain admissions are no news. An object that was refused does not
exist: its event is in its namespace, and ``kubectl get events`` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from memgate_service.admission.core.rules import Mode
from memgate_service.admission.kubernetes.cluster import ObjectEvent
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object

#: by what was done, or would have been in ``enforce``
_REASONS = {
    "refused": "MemgateRefused",
    "held": "MemgateHeld",
}
RELEASED = "MemgateReleased"
USED = "MemgateUsed"
REFUSED = "MemgateRefused"
_WOULD = "MemgateWouldRefuse"
_UNANSWERED = "MemgateNoAnswer"
_LATE = {
    "reject": "MemgateDoesNotFit",
    "uncertain": "MemgateMayNotFit",
    "bad_spec": "MemgateWrongDescription",
}


def tell_decision(document: JsonObject, record: Mapping[str, Any]) -> ObjectEvent | None:
    """Return the event of a decision of the webhooks; None if there is nothing to tell."""
    if not record or record.get("mode") == Mode.AUDIT:
        return None
    done, would = str(record.get("done")), str(record.get("would", ""))
    why = str(record.get("why", ""))
    if done in _REASONS:
        return _event(document, _REASONS[done], why)
    if would:
        return _event(document, _WOULD, f"memgate only warns here; it would be {would}: {why}")
    if record.get("decision") == "unanswered":
        return _event(document, _UNANSWERED, f"let in without an answer: {why}")
    return None


def tell_late(document: JsonObject, record: Mapping[str, Any]) -> ObjectEvent | None:
    """Return the event about something that exists, once there is an answer about it."""
    reason = _LATE.get(str(record.get("decision")))
    if reason is None or record.get("mode") == Mode.AUDIT:
        return None
    event = _event(document, reason, f"it was let in: {record.get('why', '')}")
    # webhooks and controllers both find it out: it is recorded once
    name = sha256(f"{event.uid} {event.reason}".encode()).hexdigest()[:16]
    return event._replace(name=f"memgate-{name}") if event.uid else event


def tell_released(document: JsonObject, message: str, *, is_released: bool) -> ObjectEvent:
    """Return the event of an object that was held."""
    reason = RELEASED if is_released else REFUSED
    return _event(document, reason, message)._replace(is_warning=not is_released)


def tell_used(document: JsonObject, message: str) -> ObjectEvent:
    """Return the event of something that has ended; it is recorded once."""
    event = _event(document, USED, message)
    name = sha256(f"{event.uid} {event.reason}".encode()).hexdigest()[:16]
    return event._replace(name=f"memgate-{name}", is_warning=False)


def _event(document: JsonObject, reason: str, message: str) -> ObjectEvent:
    metadata = as_object(document.get("metadata"))
    return ObjectEvent(
        api_version=str(document.get("apiVersion", "")),
        kind=str(document.get("kind", "")),
        namespace=str(metadata.get("namespace", "")),
        about=str(metadata.get("name") or metadata.get("generateName") or ""),
        uid=str(metadata.get("uid") or ""),
        reason=reason,
        message=message,
    )
