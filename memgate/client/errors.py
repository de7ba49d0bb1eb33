"""Why a client has no answer. Needs no HTTP library: programs can catch these without one.

ClientError                there is no answer
|- AnswerError               the server said why: code, detail, fault, status
|  `- RefusedError             and the caller can fix it (an ``InputError``)
|- UnreachableError          there is no server, or it is not memgate's
`- NotDoneError              the job is still running, and the time to wait has passed
"""

from __future__ import annotations

from memgate.errors import Fault, InputError, MemgateError


class ClientError(MemgateError):
    """There is no answer."""

    code = "NO_ANSWER"


class AnswerError(ClientError):
    """The server said why there is no answer."""

    def __init__(
        self,
        detail: str,
        *,
        code: str,
        fault: Fault | None = None,
        status: int | None = None,
        job: str | None = None,
        fields: tuple[str, ...] = (),
    ) -> None:
        super().__init__(detail)
        #: stable; docs/errors.md lists all
        self.code = code
        self.detail = detail
        if fault is not None:
            self.fault = fault
        #: the HTTP status; None if it was read from the record of a failed job
        self.status = status
        #: id of the job that failed
        self.job = job
        #: the fields of the request that are wrong, where the server names them
        self.fields = fields


class RefusedError(AnswerError, InputError):
    """The server said what the caller must change."""


class UnreachableError(ClientError):
    """There is no server, or it is not memgate's."""

    code = "SERVER_UNREACHABLE"


class NotDoneError(ClientError):
    """The job is still running, and the time to wait for it has passed."""

    code = "NOT_DONE"

    def __init__(self, job: str, seconds: float) -> None:
        super().__init__(
            f"job {job} was not done after {seconds:g} s; it is still running: ask for it later"
        )
        self.job = job
