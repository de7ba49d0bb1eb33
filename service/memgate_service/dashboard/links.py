"""A question and who looks at it -> its record, or a refusal.

The page of a question that a gate asked opens for whoever has its link, for some days, and only to
look at: whom a gate refuses often has no key. All else needs a key that sees the question.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memgate.contract import JobRecord, UnknownJobError
from memgate_service.dashboard.viewers import SignInNeededError, Viewer
from memgate_service.http.dependencies import Dependencies
from memgate_service.http.errors import ProblemError


def read_own(deps: Dependencies, question_id: str, viewer: Viewer) -> JobRecord:
    """Return a question that its viewer may change, or ask others like.

    Raises:
        UnknownJobError: if there is none.
        NotYoursError: if it is somebody else's.
    """
    record = deps.asked.read(question_id)
    viewer.actor.check_sees(record)
    return record


def open_page(deps: Dependencies, question_id: str, viewer: Viewer) -> tuple[JobRecord, Viewer]:
    """Return a question, and its viewer: with fewer rights if all they have is the link.

    Raises:
        SignInNeededError: if a guest may not see it, or there is none.
        UnknownJobError: if there is none.
        NotYoursError: if it is somebody else's.
    """
    try:
        record = deps.asked.read(question_id)
    except UnknownJobError:
        if viewer.is_guest:
            raise SignInNeededError from None
        raise
    if viewer.actor.sees(record.owner):
        return record, viewer
    if is_link_open(record, deps.settings.link_days, datetime.now(UTC)):
        return record, viewer.as_guest()
    if viewer.is_guest:
        raise SignInNeededError
    viewer.actor.check_sees(record)
    raise AssertionError("it refuses what is not seen")


def open_data(deps: Dependencies, question_id: str, viewer: Viewer) -> tuple[JobRecord, Viewer]:
    """Return the same for what the page fetches.

    Raises:
        ProblemError: 401 if a guest may not see it.
        UnknownJobError: if there is none.
        NotYoursError: if it is somebody else's.
    """
    try:
        return open_page(deps, question_id, viewer)
    except SignInNeededError:
        raise ProblemError(401, "sign in again: the session has ended") from None


def is_link_open(record: JobRecord, days: float, now: datetime) -> bool:
    """Say whether the page of a question opens for whoever has the link."""
    if not record.owner.is_on_behalf or record.asked_at is None:
        return False
    return now < record.asked_at + timedelta(days=days)


def may_link(deps: Dependencies, record: JobRecord, viewer: Viewer) -> bool:
    """Say whether a page may lead its viewer to a question."""
    is_open = is_link_open(record, deps.settings.link_days, datetime.now(UTC))
    return is_open or viewer.actor.sees(record.owner)
