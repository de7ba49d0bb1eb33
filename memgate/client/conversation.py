"""What a client says and hears, without doing it: requests, answers, retries, waiting.

Each function is a conversation: a generator that yields what to do next (a ``Call`` to make, a
``Pause`` to take) and is sent the response. ``client`` holds the two that do it, one blocking, one
not. Light to import: no torch, no FastAPI, no queue.

    ClientError                there is no answer
    |- AnswerError               the server said why: code, detail, status
    |  `- RefusedError             and the caller can fix it (an ``InputError``)
    |- UnreachableError          there is no server, or it is not memgate's
    `- NotDoneError              the job goes on, but the time to wait is over
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from memgate.contract import EngineName, JobRecord, JobState, WorkKind
from memgate.errors import Fault, InputError, MemgateError
from memgate.gpus import GpuRequest
from memgate.jobspec import JobSpec
from memgate.report import Estimate
from memgate.schemas import ADVICE_HEADER, PENDING, JobList, OutcomeCreate, Problem

#: how long one request may wait for an answer; then it is asked again
_MAX_POLL_SECONDS = 30.0
#: a server that wants to be left alone for longer is not waited for
_MAX_PAUSE_SECONDS = 60.0
#: between tries when nobody says how long
_FIRST_PAUSE_SECONDS = 0.25
#: what a request takes beside waiting for the answer
_SLACK_SECONDS = 30.0

_NOTHING_WAS_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)

T = TypeVar("T")
Job = JobSpec | Mapping[str, Any]
Gpu = str | GpuRequest | Mapping[str, Any]


class ClientError(MemgateError):
    """There is no answer."""

    code = "NO_ANSWER"


class AnswerError(ClientError):
    """The server said why there is no answer."""

    def __init__(
        self, detail: str, *, code: str, status: int | None = None, job: str | None = None
    ) -> None:
        super().__init__(detail)
        #: stable; docs/errors.md lists all
        self.code = code
        self.detail = detail
        #: of HTTP; None if the job itself said it
        self.status = status
        #: id of the job that failed
        self.job = job


class RefusedError(AnswerError, InputError):
    """The server said what the caller must change."""


class UnreachableError(ClientError):
    """There is no server, or it is not memgate's."""

    code = "SERVER_UNREACHABLE"


class NotDoneError(ClientError):
    """The job goes on, but the time to wait is over."""

    code = "NOT_DONE"

    def __init__(self, job: str, seconds: float) -> None:
        super().__init__(
            f"job {job} was not done after {seconds:g} s; it goes on: ask for it later"
        )
        self.job = job


class ServedEstimate(Estimate):
    """An estimate, and the id under which the server knows it: outcomes are reported to that."""

    job: str
    is_advice_pending: bool = Field(default=False, exclude=True)
    """A worker still looks for a batch that fits: ask again for it. The decision stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request to make."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    data: dict[str, str] | None = None
    files: dict[str, tuple[str, bytes]] | None = None
    params: dict[str, str] = field(default_factory=dict)
    timeout_seconds: float = _SLACK_SECONDS
    #: asking twice is like asking once
    is_repeatable: bool = True

    def waiting(self, seconds: float) -> Call:
        """Return the same request, willing to wait."""
        whole = max(0, int(seconds))
        headers = {name: text for name, text in self.headers.items() if name != "Prefer"}
        if whole:
            headers["Prefer"] = f"wait={whole}"
        return replace(self, headers=headers, timeout_seconds=whole + _SLACK_SECONDS)


@dataclass(frozen=True, slots=True)
class Pause:
    """Time to let pass."""

    seconds: float


#: yields what to do, is sent the response (of a call), returns the answer
Talk = Generator[Call | Pause, httpx2.Response | None, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often to try, and until when."""

    num_tries: int
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic

    @property
    def left_seconds(self) -> float:
        """Until the deadline."""
        return self.deadline - self.clock()


def send(call: Call, patience: Patience) -> Talk[httpx2.Response]:
    """Make a request until it is answered.

    Raises:
        AnswerError: if the answer is a problem.
        UnreachableError: if there is none.
    """
    for tried in range(1, patience.num_tries + 1):
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
            if response.status_code not in (429, 503):
                raise problem
            pause = _retry_after(response, pause)
            if problem.code == "TOO_MANY_WAITING":
                call = call.waiting(0)
        if tried == patience.num_tries or pause > min(_MAX_PAUSE_SECONDS, patience.left_seconds):
            raise problem
        yield Pause(pause)
    raise AssertionError("num_tries is at least one")


def _retry_after(response: httpx2.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):  # none, or a date, which memgate does not send
        return otherwise


def _read_problem(response: httpx2.Response) -> ClientError:
    try:
        problem = Problem.model_validate_json(response.content)
        job = json.loads(response.content).get("job")
    except ValidationError:
        return UnreachableError(
            f"HTTP {response.status_code} from {response.url.host}, not in memgate's form: is there"
            " another program, or a proxy, at this address?"
        )
    kind = RefusedError if problem.fault is Fault.CALLER else AnswerError
    return kind(problem.detail, code=problem.code, status=problem.status, job=job)


def read(kind: type[T], call: Call, patience: Patience) -> Talk[T]:
    """Make a request and check its answer."""
    response = yield from send(call, patience)
    return _check(kind, response.content)


def _check(kind: type[T], content: bytes) -> T:
    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise UnreachableError(
            f"the answer is not what this client reads ({where}: {first['msg']}); is the server"
            " memgate's, and of this version?"
        ) from None


def ask(kind: type[BaseModel], call: Call, wait: float, patience: Patience) -> Talk[Any]:
    """Put a question, and wait for the answer, with its advice, however long the queue is.

    Raises:
        NotDoneError: if there is no answer in time; one without its advice is an answer.
        AnswerError: if there is none ever, and why.
    """
    deadline = patience.clock() + wait
    response = yield from send(call.waiting(min(wait, _MAX_POLL_SECONDS)), patience)
    job_id = response.headers.get("location", "").rpartition("/")[2]
    if response.status_code == 202:
        known = yield from _await_answer(job_id, deadline, patience)
        if known is None:
            raise NotDoneError(job_id, wait)
    else:
        known = _Known(response.content, _is_advice_pending(response))
    if known.is_advice_pending:
        known = yield from _await_advice(job_id, known, deadline, patience)
    return _with_id(kind, known, job_id)


class _Known(NamedTuple):
    """An answer, JSON, and whether there is more to come."""

    content: bytes
    is_advice_pending: bool


def _await_answer(job_id: str, deadline: float, patience: Patience) -> Talk[_Known | None]:
    """Look at a job until it is over; None if it is not in time."""
    while (left := deadline - patience.clock()) > 0:
        response = yield from send(read_job(job_id, left), patience)
        record = _check(JobRecord, response.content)
        if record.state is JobState.DONE:
            return _Known(json.dumps(record.result).encode(), _is_advice_pending(response))
        if not record.state.is_open:
            raise _failure(record)
        yield Pause(min(_FIRST_PAUSE_SECONDS, left))
    return None


def _await_advice(job_id: str, known: _Known, deadline: float, patience: Patience) -> Talk[_Known]:
    """Look at a job until its advice is there; without it, what was known is the answer."""
    try:
        while known.is_advice_pending:
            fresh = yield from _await_answer(job_id, deadline, patience)
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


def submit(call: Call, patience: Patience) -> Talk[str]:
    """Put a question, and return the id of its job."""
    response = yield from send(call, patience)
    return response.headers.get("location", "").rpartition("/")[2]


def _with_id(kind: type[BaseModel], known: _Known, job_id: str) -> Any:
    if kind is not ServedEstimate:
        return _check(kind, known.content)
    said = _check(Estimate, known.content).model_dump()
    return ServedEstimate(**said, job=job_id, is_advice_pending=known.is_advice_pending)


def _failure(record: JobRecord) -> AnswerError:
    if record.error is None:
        return AnswerError(f"job {record.id} is {record.state}", code="CANCELED", job=record.id)
    kind = RefusedError if record.error.fault is Fault.CALLER else AnswerError
    return kind(record.error.message, code=record.error.code, job=record.id)


def ask_estimate(
    asked: Job | Path | bytes, gpu: Gpu, *, engine: EngineName, allocator: str
) -> Call:
    """Ask about a job, or about the job of a trace: a file, or what is in one."""
    if isinstance(asked, bytes | Path):
        return _upload(asked, {"gpu": _plain(gpu), "allocator": allocator})
    if allocator:
        raise InputError("allocator is for traces; a job says it itself, in 'allocator'")
    return _question("/estimate", {"job": _plain(asked), "gpu": _plain(gpu), "engine": engine})


def _upload(trace: bytes | Path, request: Any) -> Call:
    name = trace.name if isinstance(trace, Path) else "trace.json"
    try:
        content = trace.read_bytes() if isinstance(trace, Path) else trace
    except OSError as error:
        raise InputError(f"{trace!s}: {error.strerror or error}") from None
    return Call(
        method="POST",
        path="/estimate",
        data={"request": json.dumps(request)},
        files={"trace": (name, content)},
    )


def ask_fit(job: Job, *, engine: EngineName) -> Call:
    """Ask about every GPU."""
    return _question("/fit", {"job": _plain(job), "engine": engine})


def ask_max_batch(job: Job, gpu: Gpu, *, engine: EngineName) -> Call:
    """Ask for the largest batch."""
    return _question("/max-batch", {"job": _plain(job), "gpu": _plain(gpu), "engine": engine})


def job_path(job_id: str, part: str = "") -> str:
    """Say where a job is."""
    return f"/jobs/{quote(job_id, safe='')}{part}"


def read_job(job_id: str, wait: float = 0.0) -> Call:
    """Ask how far a job is."""
    return Call(method="GET", path=job_path(job_id)).waiting(min(wait, _MAX_POLL_SECONDS))


def report(outcome: OutcomeCreate) -> Call:
    """Tell what a job really took."""
    call = _question("/outcomes", outcome.model_dump(exclude_none=True))
    return replace(call, is_repeatable=False)  # each counts


def _question(path: str, document: Any) -> Call:
    headers = {"Content-Type": "application/json"}
    return Call(method="POST", path=path, headers=headers, content=json.dumps(document).encode())


def _plain(value: Job | Gpu) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return value if isinstance(value, str) else dict(value)


class Pages:
    """The pages of a list; a job that moves to the next page meanwhile is seen once."""

    def __init__(self, *, state: JobState | None, kind: WorkKind | None) -> None:
        self._asked = {"state": state, "kind": kind}
        self._seen: set[str] = set()
        self.offset: int | None = 0

    def call(self) -> Call:
        """Ask for the next page."""
        params = {name: str(value) for name, value in self._asked.items() if value is not None}
        return Call(method="GET", path="/jobs", params=params | {"offset": str(self.offset)})

    def take(self, page: JobList) -> list[JobRecord]:
        """Turn the page; return what is new on it."""
        fresh = [record for record in page.jobs if record.id not in self._seen]
        self._seen.update(record.id for record in fresh)
        self.offset = page.next_offset
        return fresh
