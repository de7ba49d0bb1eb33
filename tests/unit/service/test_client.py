"""The Python client, against a server that says what a test wants."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memgate import AsyncClient, Client
from memgate.client import calls
from memgate.client.errors import AnswerError, NotDoneError, RefusedError, UnreachableError
from memgate.errors import Fault, InputError
from memgate.jobspec import parse_job_spec
from memgate.timeline_file.writing import write_timeline
from tests.timeline_files import make_plain
from tests.unit.service.canned_server import ESTIMATE, JOB, JOB_ID, Answer, Server, problem, record


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call a method of either client; pauses are taken at once and written down."""
    pauses: list[float] = []

    def blocking(server: Server, name: str, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(time, "sleep", pauses.append)
        client = Client("http://memgate", transport=httpx2.MockTransport(server))
        with client:
            answer = getattr(client, name)(*arguments, **options)
            return list(answer) if inspect.isgenerator(answer) else answer

    def asynchronous(server: Server, name: str, *arguments: Any, **options: Any) -> Any:
        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        async def ask() -> Any:
            client = AsyncClient("http://memgate", transport=httpx2.MockTransport(server))
            async with client:
                answer = getattr(client, name)(*arguments, **options)
                if inspect.isasyncgen(answer):
                    return [one async for one in answer]
                return await answer

        monkeypatch.setattr("memgate.client.clients.anyio.sleep", pause)
        return asyncio.run(ask())

    made: Any = blocking if request.param == "sync" else asynchronous
    made.pauses = pauses
    return made


def test_a_memory_curve_is_typed(call: Any) -> None:
    """What the page of a job draws."""
    curve = {"num_events": 1, "peak_event": 0, "events": [0], "reserved": [2], "allocated": [1]}
    server = Server((200, curve | {"categories": {}, "phases": [], "layers": None}))

    assert call(server, "timeline", JOB_ID).reserved == [2]


@pytest.mark.parametrize("job", [JOB, parse_job_spec(JOB)], ids=["mapping", "spec"])
def test_an_estimate_is_typed_and_knows_its_job(call: Any, job: Any) -> None:
    """What was asked is what the server reads; the id is for outcomes."""
    server = Server((200, ESTIMATE))

    said = call(server, "estimate", job, "t4")

    assert (said.decision, said.id) == ("admit", JOB_ID)
    (asked,) = server.asked
    assert json.loads(asked.content) == {"job": JOB, "gpu": "t4", "engine": "auto"}
    assert asked.headers["prefer"] == "wait=30"


#: what a client takes for a trace
TRACE = b'{"traceEvents": []}'


@pytest.mark.parametrize("given", [Path, str, lambda _: TRACE], ids=["Path", "str", "bytes"])
def test_a_trace_is_uploaded(call: Any, tmp_path: Path, given: Any) -> None:
    """As a file, or as bytes."""
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    server = Server((200, ESTIMATE))

    call(server, "estimate", given(path), "t4", allocator="x:1")

    (asked,) = server.asked
    assert asked.headers["content-type"].startswith("multipart/form-data")
    assert b'{"gpu": "t4", "allocator": "x:1"}' in asked.content
    assert TRACE in asked.content
    assert b'name="trace"' in asked.content


def test_inference_is_asked_about_a_trace_alone(call: Any) -> None:
    """A job spec describes training."""
    server = Server((200, ESTIMATE))

    call(server, "estimate", TRACE, "t4", inference=True)

    (asked,) = server.asked
    assert b'{"gpu": "t4", "allocator": "", "inference": true}' in asked.content
    with pytest.raises(InputError, match="inference is for traces"):
        call(server, "estimate", JOB, "t4", inference=True)


def test_a_memory_snapshot_is_uploaded_as_one(call: Any, tmp_path: Path) -> None:
    """In a part of its own, with the device that is meant."""
    path = tmp_path / "snapshot"
    path.write_bytes(b"\x80\x04}.")
    server = Server((200, ESTIMATE))

    call(server, "estimate", path, "t4", device=1)

    (asked,) = server.asked
    assert b'{"gpu": "t4", "allocator": "", "device": 1}' in asked.content
    assert b'name="snapshot"' in asked.content


def test_a_file_may_hold_a_job_spec(call: Any, tmp_path: Path) -> None:
    """It is told from a trace by its content; a mistake in it names the file."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    server = Server((200, ESTIMATE))

    call(server, "estimate", path, "t4")

    assert json.loads(server.asked[0].content)["job"] == JOB
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"job.json: neither JSON nor YAML: not UTF-8"):
        call(server, "estimate", str(path), "t4")


def test_an_answer_that_takes_long_is_waited_for(call: Any) -> None:
    """Accepted, still running, done: by polling, and each poll waits at the server."""
    server = Server((202, {}), record("running"), record("done", result=ESTIMATE))

    said = call(server, "estimate", JOB, "t4")

    assert (said.decision, said.id) == ("admit", JOB_ID)
    assert [asked.url.path for asked in server.asked[1:]] == [f"/jobs/{JOB_ID}"] * 2
    assert server.asked[1].headers["prefer"] == "wait=30"


def test_waiting_has_an_end(call: Any) -> None:
    """The job goes on, and the error has its id."""
    with pytest.raises(NotDoneError, match="it is still running") as raised:
        call(Server((202, {})), "fit", JOB, wait=0)

    assert raised.value.job == JOB_ID


@pytest.mark.parametrize(
    ("fault", "want"),
    [("caller", RefusedError), ("job", AnswerError), ("unsupported", AnswerError)],
)
def test_a_job_that_fails_says_why(call: Any, fault: str, want: type) -> None:
    """And whether asking differently would help."""
    error = {"code": "NO_KERNELS", "message": "too old", "fault": fault}

    with pytest.raises(AnswerError, match="too old") as raised:
        call(Server((202, {}), record("failed", error=error)), "estimate", JOB, "t4")

    assert type(raised.value) is want
    assert (raised.value.code, raised.value.job) == ("NO_KERNELS", JOB_ID)


def test_a_canceled_job_has_no_answer(call: Any) -> None:
    """Somebody else may have ended it."""
    with pytest.raises(AnswerError, match="is canceled"):
        call(Server((202, {}), record("canceled")), "max_batch", JOB, "t4")


@pytest.mark.parametrize(
    ("status", "code", "want"),
    [
        (422, "BAD_INPUT", RefusedError),
        (401, "NO_KEY", RefusedError),
        (422, "JOB_FAILED", AnswerError),
        (500, "INTERNAL", AnswerError),
    ],
)
def test_a_problem_is_an_error_with_its_code(call: Any, status: int, code: str, want: type) -> None:
    """It is not asked again: nothing would change."""
    with pytest.raises(AnswerError) as raised:
        call(Server(problem(status, code, "the detail")), "accuracy")

    error = raised.value
    assert type(error) is want
    assert (error.status, error.code, error.detail) == (status, code, "the detail")
    assert isinstance(error, InputError) is (want is RefusedError)


def test_a_busy_server_is_left_alone_for_as_long_as_it_wants(call: Any) -> None:
    """Retry-After, of 429 and 503 alike."""
    server = Server(
        problem(429, "QUEUE_FULL", Retry_After="7"),
        problem(503, "QUEUE_UNREACHABLE", Retry_After="2"),
        (200, []),
    )

    assert call(server, "gpus") == []
    assert call.pauses == [7, 2]


def test_a_server_that_needs_its_operator_is_not_asked_again(call: Any) -> None:
    """503 without Retry-After: it does not pass by itself."""
    with pytest.raises(AnswerError) as raised:
        call(Server(problem(503, "RUNTIME_MISSING")), "gpus")

    assert type(raised.value) is AnswerError
    assert (raised.value.fault, call.pauses) == (Fault.OPERATOR, [])


def test_a_server_that_wants_too_long_a_pause_is_not_waited_for(call: Any) -> None:
    """The caller knows better what to do for ten minutes."""
    with pytest.raises(AnswerError, match="later"):
        call(Server(problem(429, "QUEUE_FULL", "later", Retry_After="600")), "gpus")


def test_where_too_many_wait_the_client_polls(call: Any) -> None:
    """As the server asks for."""
    server = Server(problem(503, "TOO_MANY_WAITING", Retry_After="0"), (200, ESTIMATE))

    call(server, "estimate", JOB, "t4")

    assert "prefer" not in server.asked[1].headers


def test_a_lost_connection_is_tried_again_and_given_up_in_the_end(call: Any) -> None:
    """Pauses double."""
    server = Server(httpx2.ReadError("gone"), httpx2.ConnectError("refused"), (200, []))
    assert call(server, "gpus") == []
    assert call.pauses == [0.25, 0.5]

    server = Server(*[httpx2.ConnectError("refused")] * 6)
    with pytest.raises(UnreachableError, match=r"does not answer \(refused\)"):
        call(server, "gpus")
    assert server.is_done


def test_an_outcome_is_told_once(call: Any) -> None:
    """Each counts, so a request that may have arrived is not repeated."""
    server = Server(httpx2.ConnectError("refused"), (201, {}))
    call(server, "report_outcome", JOB_ID, 1 << 30, is_reserved_only=True)
    assert json.loads(server.asked[1].content)["measured_peak_bytes"] == 1 << 30

    with pytest.raises(UnreachableError):
        call(Server(httpx2.ReadError("gone")), "report_outcome", JOB_ID, 1)
    with pytest.raises(InputError, match="measured_peak_bytes"):
        call(Server(), "report_outcome", JOB_ID, 0)


@pytest.mark.parametrize(
    "answer", [(502, "<html>"), (200, {"detail": "hello"})], ids=["proxy", "other-program"]
)
def test_another_program_at_the_address_is_noticed(call: Any, answer: Answer) -> None:
    """With what to look at."""
    with pytest.raises(UnreachableError, match=r"another program|is the server"):
        call(Server(answer), "gpus")


def test_jobs_come_page_by_page_and_each_once(call: Any) -> None:
    """A job that moved to the next page while the first was read is not seen again."""

    def page(ids: str, next_offset: int | None) -> Answer:
        _, fields = record("done")
        return 200, {"jobs": [fields | {"id": one} for one in ids], "next_offset": next_offset}

    server = Server(page("cb", 2), page("ba", None))

    assert [one.id for one in call(server, "jobs", state="done")] == ["c", "b", "a"]
    assert dict(server.asked[1].url.params) == {"state": "done", "offset": "2"}


def test_single_jobs_can_be_read_ended_and_submitted(call: Any) -> None:
    """Ids are put into paths with care."""
    assert call(Server(record("queued")), "job", JOB_ID, wait=3).state == "queued"
    server = Server(record("canceled"))
    assert call(server, "cancel", "../gpus").state == "canceled"
    assert server.asked[0].url.raw_path == b"/jobs/..%2Fgpus"
    assert call(Server((202, {})), "submit", JOB, "t4") == JOB_ID


def test_a_server_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, or by the environment."""
    monkeypatch.delenv("MEMGATE_URL", raising=False)
    with pytest.raises(InputError, match="MEMGATE_URL"):
        Client()
    with pytest.raises(InputError, match="begins with http"):
        Client("memgate:8080")


def test_a_key_is_shown_to_the_server_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in what is printed of a client, nor in errors."""
    monkeypatch.setenv("MEMGATE_URL", "http://memgate")
    monkeypatch.setenv("MEMGATE_API_KEY", "mg_secret")
    server = Server(problem(401, "NO_KEY"))
    with (
        Client(transport=httpx2.MockTransport(server)) as client,
        pytest.raises(RefusedError) as raised,
    ):
        client.gpus()

    assert server.asked[0].headers["authorization"] == "Bearer mg_secret"
    assert "secret" not in repr(client) + repr(raised.value) + str(raised.value)


def test_a_trace_that_is_not_there_and_a_misplaced_option(tmp_path: Path) -> None:
    """Noticed before anything is sent."""
    ask: Callable[..., Any] = calls.ask_estimate
    with pytest.raises(InputError, match="No such file"):
        ask(tmp_path / "none.json", "t4", engine="auto", allocator="")
    with pytest.raises(InputError, match="only memory snapshots and traces of GPUs have several"):
        ask(JOB, "t4", engine="auto", allocator="", device=0)
    with pytest.raises(InputError, match="allocator is for uploads"):
        ask(JOB, "t4", engine="auto", allocator="x:1")


def test_the_client_is_light() -> None:
    """A training script can import it: no torch, no web framework, no queue, no terminal."""
    heavy = ["torch", "fastapi", "starlette", "redis", "rq", "rich", "typer", "matplotlib"]
    found = f"str(sorted(set({heavy}) & set(sys.modules)))"
    check = f"import sys, memgate.client.clients; sys.exit({found})"

    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)

    assert ran.stderr.strip() == "[]"


#: of an answer that may still be given advice
PENDING = {"Location": f"/jobs/{JOB_ID}", "X-Memgate-Advice": "pending"}
REJECT = ESTIMATE | {"decision": "reject"}
ADVISED = REJECT | {"largest_batch_size": 12}


def test_a_rejection_is_waited_for_until_its_advice_is_there(call: Any) -> None:
    """The decision comes first; the job is looked at until nothing more is to come."""
    _, still = record("done", result=REJECT)
    server = Server((200, REJECT, PENDING), (200, still, PENDING), record("done", result=ADVISED))

    said = call(server, "estimate", JOB, "t4", wait=20)

    assert (said.decision, said.largest_batch_size) == ("reject", 12)
    assert not said.is_advice_pending
    assert [request.url.path for request in server.asked[1:]] == [f"/jobs/{JOB_ID}"] * 2
    assert all(request.headers["prefer"].startswith("wait=") for request in server.asked)
    assert server.is_done


@pytest.mark.parametrize(
    ("wait", "then"),
    [
        (0, []),
        (20, [problem(404, "UNKNOWN_JOB")]),
        (20, [record("canceled")]),
    ],
    ids=["no time", "forgotten", "canceled"],
)
def test_a_decision_stands_without_its_advice(call: Any, wait: float, then: list[Answer]) -> None:
    """Whatever becomes of the search; the caller may see that more is to come."""
    server = Server((200, REJECT, PENDING), *then)

    said = call(server, "estimate", JOB, "t4", wait=wait)

    assert (said.decision, said.largest_batch_size) == ("reject", None)
    assert said.is_advice_pending
    assert "is_advice_pending" not in said.model_dump()
    assert server.is_done


def test_a_timeline_file_is_uploaded_as_one(tmp_path: Path) -> None:
    """From a path or as bytes, for one GPU or for all; settings replace its own."""
    file = write_timeline(make_plain())
    path = tmp_path / "job.memgate"
    path.write_bytes(file)

    one = calls.ask_estimate(path, "t4", engine="auto", allocator="")
    every = calls.ask_fit(file, engine="auto", allocator="max_split_size_mb:50")

    assert (one.path, one.files) == ("/estimate", {"timeline": ("job.memgate", file)})
    assert (every.path, every.files) == ("/fit", {"timeline": ("upload", file)})
    assert every.data == {"request": '{"allocator": "max_split_size_mb:50"}'}
    with pytest.raises(InputError, match="allocator is for uploads"):
        calls.ask_fit({"model": {}}, engine="auto", allocator="x")
