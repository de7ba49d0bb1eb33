"""The bytes of an AdmissionReview -> a ``Review``; a ``WebhookAnswer`` -> the bytes to send back.

Only ``admission.k8s.io/v1``. The API server asks about one object, and wants its ``uid`` back.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from memgate.errors import InputError

#: the longest warning that every API server shows in full
_MAX_WARNING = 250

#: an API server shows 4 KiB of them
_MAX_WARNINGS = 11

#: a message may quote a person's own text, which may be as long as an annotation
_MAX_MESSAGE = 2000


class Kind(msgspec.Struct, frozen=True):
    """The kind of an object."""

    kind: str
    group: str = ""

    @property
    def name(self) -> str:
        """As it stands in ``MEMGATE_ADMISSION_PATHS``: Job.batch; the group of Pod is empty."""
        return f"{self.kind}.{self.group}".rstrip(".")


class User(msgspec.Struct, frozen=True):
    """The user who makes the request."""

    username: str = ""
    groups: list[str] = []


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """What the API server asks, as far as we read it."""

    uid: str
    kind: Kind
    operation: str
    namespace: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool = False
    user_info: User = User()


_Version = Literal["admission.k8s.io/v1"]
_Name = Literal["AdmissionReview"]


class ReviewRequest(msgspec.Struct, rename="camel"):
    """What the API server sends."""

    api_version: _Version
    kind: _Name
    request: Review


class Status(msgspec.Struct, omit_defaults=True):
    """Why something is refused."""

    code: int
    reason: str
    message: str
    details: dict[str, int] = {}
    status: str = "Failure"


class Response(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The decision, as the API server wants it."""

    uid: str
    allowed: bool
    status: Status | None = None
    warnings: list[str] = []
    patch_type: str | None = None
    patch: str | None = None
    """A JSON Patch, as base64."""
    audit_annotations: dict[str, str] = {}


class ReviewResponse(msgspec.Struct, rename="camel"):
    """What the API server is sent."""

    response: Response
    api_version: _Version = "admission.k8s.io/v1"
    kind: _Name = "AdmissionReview"


_DECODER = msgspec.json.Decoder(ReviewRequest)


class WebhookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook decides about an object."""

    allowed: bool
    message: str = ""
    code: int = 403
    retry_seconds: int | None = None
    """When to retry something refused for now: Kubernetes clients do so automatically."""
    warnings: Sequence[str] = ()
    patch: Sequence[dict[str, Any]] = ()
    outcome: str = ""
    """For the metrics: a ``Decision``, or ``wrong`` for a mistake; empty if nothing was judged."""
    notes: dict[str, str] = {}
    """For the audit log of the cluster."""
    is_held: bool = False
    """It is let in, and held."""
    record: dict[str, Any] = {}
    """For our own audit; empty if there is nothing to record."""


def read_review(body: bytes) -> Review:
    """Read what is asked.

    Raises:
        InputError: if it is not an AdmissionReview of v1.
    """
    try:
        return _DECODER.decode(body).request
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"not an AdmissionReview of admission.k8s.io/v1: {error}") from None


def write_review(review: Review, answer: WebhookAnswer) -> bytes:
    """Write what was decided."""
    response = Response(
        uid=review.uid,
        allowed=answer.allowed,
        status=None if answer.allowed else _status(answer),
        warnings=_few([part for warning in answer.warnings for part in _parts(warning)]),
        audit_annotations=answer.notes,
    )
    if answer.patch:
        response.patch_type = "JSONPatch"
        response.patch = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    return msgspec.json.encode(ReviewResponse(response))


def _status(answer: WebhookAnswer) -> Status:
    later = answer.retry_seconds
    return Status(
        code=answer.code,
        reason="Forbidden" if later is None else "TooManyRequests",
        message=_short(answer.message, _MAX_MESSAGE),
        details={} if later is None else {"retryAfterSeconds": later},
    )


def _parts(warning: str) -> list[str]:
    """Split a warning that is too long in two: what to do is at its end."""
    flat = _short(warning, 2 * _MAX_WARNING)
    if len(flat) <= _MAX_WARNING:
        return [flat]
    first, *rest = textwrap.wrap(flat, _MAX_WARNING, break_on_hyphens=False)
    return [first, _short(f"memgate: ... {' '.join(rest)}", _MAX_WARNING)]


def _few(warnings: list[str]) -> list[str]:
    if len(warnings) <= _MAX_WARNINGS:
        return warnings
    shown = warnings[: _MAX_WARNINGS - 1]
    return [*shown, f"memgate: and {len(warnings) - len(shown)} more warnings"]


def _short(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."
