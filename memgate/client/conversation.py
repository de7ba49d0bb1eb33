"""What a client says and hears, without doing it: sending, retries, waiting for an answer.

Each function is a conversation: a generator that yields what to do next (a ``HttpCall`` to make, a
``Pause`` to take) and is sent the response. ``clients`` has the two classes that do it, one
blocking, one not. Light to import: no torch, no FastAPI, no queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import httpx2
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from memgate.client.calls import MAX_POLL_SECONDS, HttpCall, read_job
from memgate.client.errors import (
    AnswerError,
    ClientError,
    NotDoneError,
    RefusedError,
    UnreachableError,
)
from memgate.contract import JobRecord
from memgate.errors import Fault
from memgate.report import Estimate
from memgate.schemas import ADVICE_HEADER, PENDING, Problem
from memgate.validation import explain_errors

#: a server that asks for a longer pause is not waited for
_MAX_PAUSE_SECONDS = 60.0
#: between tries when the server does not say how long
_FIRST_PAUSE_SECONDS = 0.25

_NOTHING_WAS_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)

T = TypeVar("T")


class ServedEstimate(Estimate):
    """An estimate from a server: it has an ``id``, for which outcomes are reported."""

    id: str
    is_advice_pending: bool = Field(default=False, exclude=True)
    """A worker is still looking for a batch that fits: ask again for it. The decision stands."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time to wait."""

    seconds: float


#: yields what to do, is sent the response (of a call), returns the answer
Talk = Generator[HttpCall | Pause, httpx2.Response | None, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often to try, and until when."""

    num_tries: int
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic

    @property
    def left_seconds(self) -> float:
        """Until the deadline."""
        return self.deadline - self.clock()


def send(call: HttpCall, policy: RetryPolicy) -> Talk[httpx2.Response]:
    """Make a request until it is answered.

    Raises:
        AnswerError: if the answer is a problem.
        UnreachableError: if there is none.
    """
    for tried in range(1, policy.num_tries + 1):
        pause = _FIRST_PAUSE_SECONDS * 2 ** (tried - 1)
        problem: ClientError
        try:
            response = yield call
        except httpx2.RequestError as error:
            what = str(error) or type(error).__name__
            problem = UnreachableError(f"the server does not answer ({what}); check its address")
            if not call.is_repeatable and not isinstance(error, _NOTHING_WAS_SENT):
                raise problem from None
        else:
            assert response is not None
            if response.is_success:
                return response
            problem = _read_problem(response)
            if response.status_code not in (429, 503) or problem.fault is not Fault.PASSING:
                raise problem
            pause = _retry_after(response, pause)
            if problem.code == "TOO_MANY_WAITING":
                call = call.waiting(0)
        if tried == policy.num_tries or pause > min(_MAX_PAUSE_SECONDS, policy.left_seconds):
            raise problem
        yield Pause(pause)
    raise AssertionError("num_tries is at least one")


def _retry_after(response: httpx2.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):  # missing, or a date, which memgate does not send
        return otherwise


def _read_problem(response: httpx2.Response) -> ClientError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return UnreachableError(
            f"HTTP {response.status_code} from {response.url.host}, not in memgate's form: is there"
            " another program, or a proxy, at this address?"
        )
    kind = RefusedError if problem.fault is Fault.CALLER else AnswerError
    return kind(
        problem.detail,
        code=problem.code,
        fault=problem.fault,
        status=problem.status,
        job=problem.job,
        fields=tuple(wrong.field for wrong in problem.errors),
    )


def read(kind: type[T], call: HttpCall, policy: RetryPolicy) -> Talk[T]:
    """Make a request and check its answer."""
    response = yield from send(call, policy)
    return _check(kind, response.content)


def _check(kind: type[T], content: bytes) -> T:
    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        first = explain_errors(error.errors(include_url=False))[0]
        raise UnreachableError(
            f"the answer is not what this client reads ({first.sentence}); is the server"
            " memgate's, and of this version?"
        ) from None


def ask(kind: type[BaseModel], call: HttpCall, wait: float, policy: RetryPolicy) -> Talk[Any]:
    """Ask a question and wait for the answer, with its advice, however long the queue is.

    Raises:
        NotDoneError: if there is no answer in time; an answer without its advice counts.
        AnswerError: if there will never be one, with the reason.
    """
    deadline = policy.clock() + wait
    response = yield from send(call.waiting(min(wait, MAX_POLL_SECONDS)), policy)
    job_id = response.headers.get("location", "").rpartition("/")[2]
    if response.status_code == 202:
        known = yield from _await_answer(job_id, deadline, policy)
        if known is None:
            raise NotDoneError(job_id, wait)
    else:
        known = _Known(response.content, _is_advice_pending(response))
    if known.is_advice_pending:
        known = yield from _await_advice(job_id, known, deadline, policy)
    return _read_answer(kind, known, job_id)


class _Known(NamedTuple):
    """An answer, JSON, and whether there is more to come."""

    content: bytes
    is_advice_pending: bool


def _await_answer(job_id: str, deadline: float, policy: RetryPolicy) -> Talk[_Known | None]:
    """Poll a job until it has ended; None if it does not end in time."""
    while (left := deadline - policy.clock()) > 0:
        response = yield from send(read_job(job_id, left), policy)
        record = _check(JobRecord, response.content)
        if record.result is not None:
            content = record.result.model_dump_json().encode()
            return _Known(content, _is_advice_pending(response))
        if not record.state.is_open:
            raise _failure(record)
        yield Pause(min(_FIRST_PAUSE_SECONDS, left))
    return None


def _await_advice(job_id: str, known: _Known, deadline: float, policy: RetryPolicy) -> Talk[_Known]:
    """Poll a job until its advice is there; without advice, return the answer as it was."""
    try:
        while known.is_advice_pending:
            fresh = yield from _await_answer(job_id, deadline, policy)
            if fresh is None:
                return known
            known = fresh
            if known.is_advice_pending:
                yield Pause(_FIRST_PAUSE_SECONDS)
    except ClientError:  # the decision is there, and does not depend on it
        return known
    return known


def _is_advice_pending(response: httpx2.Response) -> bool:
    return bool(response.headers.get(ADVICE_HEADER) == PENDING)


def submit(call: HttpCall, policy: RetryPolicy) -> Talk[str]:
    """Ask a question and return the id of its job."""
    response = yield from send(call, policy)
    return response.headers.get("location", "").rpartition("/")[2]


def _read_answer(kind: type[BaseModel], known: _Known, job_id: str) -> Any:
    if kind is not ServedEstimate:
        return _check(kind, known.content)
    said = _check(Estimate, known.content)
    more = {"id": said.id or job_id, "is_advice_pending": known.is_advice_pending}
    return ServedEstimate(**(said.model_dump() | more))


def _failure(record: JobRecord) -> AnswerError:
    if record.error is None:
        return AnswerError(f"job {record.id} is {record.state}", code="CANCELED", job=record.id)
    kind = RefusedError if record.error.fault is Fault.CALLER else AnswerError
    error = record.error
    return kind(error.message, code=error.code, fault=error.fault, job=record.id)
