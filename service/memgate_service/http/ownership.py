"""Who asks, for whom, and whose questions they may see or withdraw.

A program that asks for others names them in headers (``memgate.owner``); its key needs the right
to. Where no keys are needed, everybody may do everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from fastapi import Request

from memgate.contract import JobRecord, NotYoursError
from memgate.owner import MAX_OWNER_TEXT, OWNER_HEADERS, Owner, list_tags
from memgate_service.http.access import refuse_right
from memgate_service.http.errors import ProblemError
from memgate_worker.queue.keys import ApiKey, Right, Role

_FIELDS = {header.lower().encode(): field for field, header in OWNER_HEADERS.items()}

#: what all of them begin with
_PREFIX = b"x-memgate-"

#: what a caller may say of their own questions
_OWN_FIELDS = frozenset({"job_name"})


class Actor(NamedTuple):
    """Somebody who asks, looks or withdraws."""

    rights: Right
    key: str = ""
    user: str = ""

    @classmethod
    def of(cls, key: ApiKey | None) -> Actor:
        """Return who has a key; None: no keys are needed."""
        if key is None:
            return cls(Role.ADMIN.rights)
        return cls(key.rights, key.key_id, key.user)

    @property
    def tags(self) -> list[str] | None:
        """The lists of the questions that they see; None: all."""
        if Right.READ_ALL in self.rights:
            return None
        return list_tags(key=self.key, user=self.user)

    def owns(self, owner: Owner) -> bool:
        """Say whether a question is theirs: asked with their key, or for them."""
        is_mine = bool(self.key) and owner.key == self.key
        return is_mine or (bool(self.user) and owner.user == self.user)

    def sees(self, owner: Owner) -> bool:
        """Say whether they may see a question."""
        return Right.READ_ALL in self.rights or self.owns(owner)

    def check_sees(self, record: JobRecord) -> None:
        """Refuse to show somebody else's question.

        Raises:
            NotYoursError: if it is not theirs.
        """
        if not self.sees(record.owner):
            raise _not_yours(record.id, Right.READ_ALL, "see")

    def check_withdraws(self, record: JobRecord) -> None:
        """Refuse to withdraw somebody else's question.

        Raises:
            NotYoursError: if it is not theirs.
        """
        if Right.CANCEL_ALL not in self.rights and not self.owns(record.owner):
            raise _not_yours(record.id, Right.CANCEL_ALL, "withdraw")

    def check_reports(self, record: JobRecord) -> None:
        """Refuse an outcome of somebody else's job; a gate reports everybody's.

        Raises:
            NotYoursError: if it is not theirs.
        """
        if Right.ON_BEHALF not in self.rights and not self.owns(record.owner):
            raise _not_yours(record.id, Right.ON_BEHALF, "report an outcome of")


def _not_yours(question_id: str, right: Right, what: str) -> NotYoursError:
    return NotYoursError(
        f"job {question_id} was asked with another key: use that key to {what} it, or one with the"
        f" right {right.names[0]}"
    )


def actor_of(request: Request) -> Actor:
    """Return who made a request that was let in."""
    return Actor.of(getattr(request.state, "api_key", None))


def owner_of(request: Request) -> Owner:
    """Return whose question a request asks.

    Raises:
        ProblemError: 403 if it names somebody else and its key may not, 422 if a name is unfit.
    """
    named = read_owner(request.scope["headers"])
    key: ApiKey | None = getattr(request.state, "api_key", None)
    if key is None:
        return Owner(**named)
    if asks_for_others(named) and Right.ON_BEHALF not in key.rights:
        header = next(OWNER_HEADERS[field] for field in named if field not in _OWN_FIELDS)
        raise refuse_right(key, Right.ON_BEHALF, f"to ask for others (the header {header})")
    return Owner(key=key.key_id, **named)


def asks_for_others(named: Iterable[str]) -> bool:
    """Say whether these fields name anybody else."""
    return not _OWN_FIELDS.issuperset(named)


def read_owner(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return what the headers of a request say about whose question it is.

    Raises:
        ProblemError: 422 if a name is unfit.
    """
    return {
        _FIELDS[name]: _read_text(name, value)
        for name, value in headers
        if name.startswith(_PREFIX) and name in _FIELDS and value
    }


def _read_text(name: bytes, value: bytes) -> str:
    try:
        text = unquote(value.decode("ascii")).strip()
    except UnicodeError:
        raise _unfit(name, value, "it must be UTF-8, percent-encoded") from None
    if _FIELDS[name] in _OWN_FIELDS:  # a job may be called anything
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) > MAX_OWNER_TEXT:
        raise _unfit(name, value, f"it may have {MAX_OWNER_TEXT} characters")
    if not text.isprintable():
        raise _unfit(name, value, "it must be printable")
    return text


def _unfit(name: bytes, value: bytes, rule: str) -> ProblemError:
    header = OWNER_HEADERS[_FIELDS[name]]
    return ProblemError(422, f"{header} is {value[:60].decode('latin-1')!r}: {rule}")
