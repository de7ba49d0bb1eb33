"""The HTTP API on a real Valkey: what is asked, joined, listed, canceled and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from memgate.contract import Failure
from memgate.errors import Fault
from memgate.max_batch import MaxBatch
from memgate.report import Fit
from memgate.units import GIB
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.store import JobStore
from tests.admission import make_estimate

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 4,
}
ASKED = {"job": JOB, "gpu": "rtx-3060"}
RESULT = make_estimate(GIB, "rtx-3060")


def _client(redis_url: str, **settings: Any) -> TestClient:
    return TestClient(create_app(ServiceSettings(redis_url=redis_url, **settings)))


def _store(client: TestClient) -> JobStore:
    store = client.app.state.dependencies.queue.store  # type: ignore[attr-defined]
    assert isinstance(store, JobStore)
    return store


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Make a service that nobody works for."""
    with _client(redis_url) as made:
        yield made


def _asked(batch_size: int) -> dict[str, Any]:
    return {"job": JOB | {"batch_size": batch_size}, "gpu": "rtx-3060"}


def test_a_question_is_accepted_and_found_under_its_location(client: TestClient) -> None:
    """202 names the job; asked again it is the same one."""
    first = client.post("/estimate", json=ASKED)
    again = client.post("/estimate", content=json.dumps(ASKED, indent=3), headers=_JSON)

    assert first.status_code == again.status_code == 202
    assert first.headers["location"] == again.headers["location"]
    job = client.get(first.headers["location"]).json()
    assert (job["state"], job["kind"], job["id"]) == ("queued", "estimate", first.json()["id"])
    assert len(client.get("/jobs").json()["jobs"]) == 1


_JSON = {"Content-Type": "application/json"}


def test_an_answer_comes_from_the_store_then_from_memory(client: TestClient) -> None:
    """200 with the answer itself; the same bytes are not looked up twice."""
    job = client.post("/estimate", json=ASKED).json()["id"]
    assert _store(client).finish(job, RESULT.model_dump_json())

    answers = [client.post("/estimate", json=ASKED) for _ in range(2)]

    want = RESULT.model_copy(update={"id": job, "page": f"/ui/jobs/{job}"}).model_dump(mode="json")
    assert [answer.json() for answer in answers] == [want, want]
    assert [answer.headers["x-memgate-cache"] for answer in answers] == ["store", "memory"]
    assert {answer.headers["location"] for answer in answers} == {f"/jobs/{job}"}


@pytest.mark.parametrize(
    ("prefer", "want"),
    [
        ("wait=1", "wait=1"),
        ('respond-async, WAIT="1"', "wait=1"),
        ("wait=999999", "wait=1.5"),
        ("wait=-1", None),
        ("wait=99999999999999999999", None),
        ("wait=1e3", None),
        ("await=1", None),
    ],
)
def test_a_preference_is_applied_within_the_limit_or_ignored(
    redis_url: str, prefer: str, want: str | None
) -> None:
    """Never an error: RFC 7240 says to ignore what is not understood."""
    with _client(redis_url, max_wait_seconds=1.5) as client:
        answer = client.post("/estimate", json=ASKED, headers={"Prefer": prefer})

    assert answer.status_code == 202
    assert answer.headers.get("preference-applied") == want


def test_a_job_is_canceled_once_and_can_be_asked_for_again(client: TestClient) -> None:
    """Canceling twice does no harm; asking again begins anew."""
    where = client.post("/fit", json={"job": JOB}).headers["location"]

    states = [client.delete(where).json()["state"] for _ in range(2)]
    again = client.post("/fit", json={"job": JOB})

    assert states == ["canceled", "canceled"]
    assert (again.status_code, again.headers["location"]) == (202, where)
    assert client.get(where).json()["state"] == "queued"


@pytest.mark.parametrize(
    ("code", "fault", "want"),
    [
        ("BAD_TRACE", "caller", 422),
        ("JOB_FAILED", "job", 422),
        ("NOT_MODELLED", "unsupported", 422),
    ],
)
def test_a_job_that_failed_is_a_problem_with_its_own_code(
    client: TestClient, code: str, fault: str, want: int
) -> None:
    """The job has the same reason as the answer."""
    job = client.post("/max-batch", json=ASKED).json()["id"]
    error = Failure(code=code, message="because", fault=Fault(fault))
    assert _store(client).fail(job, error)

    answer = client.post("/max-batch", json=ASKED)

    assert (answer.status_code, answer.json()["code"]) == (want, code)
    assert (answer.json()["detail"], answer.json()["job"]) == ("because", job)
    assert answer.json()["fault"] == fault
    assert client.get(f"/jobs/{job}").json()["error"]["code"] == code


@pytest.mark.parametrize("fault", [Fault.OPERATOR, Fault.PASSING])
def test_what_the_operator_can_mend_is_asked_anew(client: TestClient, fault: Fault) -> None:
    """The failure is told to those who look at the job, and not to the next who asks."""
    job = client.post("/max-batch", json=ASKED).json()["id"]
    assert _store(client).fail(job, Failure(code="X", message="because", fault=fault))
    told = client.get(f"/jobs/{job}").json()

    again = client.post("/max-batch", json=ASKED)

    assert (told["state"], told["error"]["fault"]) == ("failed", fault)
    assert (again.status_code, again.json()["state"]) == (202, "queued")


def test_jobs_are_listed_by_page_and_filter(client: TestClient) -> None:
    """The newest first; null where there is no next page."""
    ids = [client.post("/estimate", json=_asked(size)).json()["id"] for size in range(1, 6)]
    client.delete(f"/jobs/{ids[2]}")

    first = client.get("/jobs", params={"limit": 3}).json()
    second = client.get("/jobs", params={"limit": 3, "offset": first["next_offset"]}).json()
    canceled = client.get("/jobs", params={"state": "canceled"}).json()
    fits = client.get("/jobs", params={"kind": "fit"}).json()

    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert (first["next_offset"], second["next_offset"]) == (3, None)
    assert [job["id"] for job in canceled["jobs"]] == [ids[2]]
    assert fits == {"jobs": [], "next_offset": None}


def test_a_timeline_is_there_once_an_estimate_is_done(client: TestClient) -> None:
    """404 before, with a code of its own."""
    job = client.post("/estimate", json=ASKED).json()["id"]
    before = client.get(f"/jobs/{job}/timeline")
    _store(client).save_view(job, '{"num_events": 0}')

    assert (before.status_code, before.json()["code"]) == (404, "NO_TIMELINE")
    assert client.get(f"/jobs/{job}/timeline").json() == {"num_events": 0}


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b'{"gpu": NaN}'])
def test_what_is_not_json_is_a_mistake_like_any_other(client: TestClient, body: bytes) -> None:
    """A program finds it where it finds the mistakes in fields."""
    said = client.post("/estimate", content=body, headers={"Content-Type": "application/json"})

    assert (said.status_code, said.json()["code"]) == (422, "BAD_INPUT")
    assert said.json()["errors"][0]["rule"].startswith("is not a JSON object")


def test_an_outcome_is_compared_with_what_was_predicted(client: TestClient) -> None:
    """201, and the accuracy knows of it; of an open job there is nothing to compare."""
    job = client.post("/estimate", json=ASKED).json()["id"]
    predicted = RESULT.peak_on_gpu_bytes
    outcome = {"job": job, "measured_peak_bytes": 2 * predicted}
    early = client.post("/outcomes", json=outcome)
    _store(client).finish(job, RESULT.model_dump_json())

    made = client.post("/outcomes", json=outcome)

    assert (early.status_code, early.json()["code"]) == (422, "BAD_INPUT")
    assert (made.status_code, made.json()["predicted_peak_bytes"]) == (201, predicted)
    accuracy = client.get("/accuracy").json()
    assert accuracy["all"]["median_relative_error"] == 0.5
    assert set(accuracy["by_gpu"]) == {"rtx-3060"}


def test_a_full_queue_is_429_but_what_is_known_is_answered(redis_url: str) -> None:
    """With Retry-After; an upload is not even stored."""
    with _client(redis_url, max_queued=1) as client:
        assert client.post("/estimate", json=_asked(1)).status_code == 202
        refused = client.post("/estimate", json=_asked(2))
        upload = client.post("/estimate", files=_upload(b"{}"))
        assert client.post("/estimate", json=_asked(1)).status_code == 202
        assert not list(_store(client).redis.scan_iter("memgate:trace:*"))

    for answer in (refused, upload):
        assert (answer.status_code, answer.json()["code"]) == (429, "QUEUE_FULL")
        assert int(answer.headers["retry-after"]) >= 1


def test_too_many_waiting_clients_are_503(redis_url: str) -> None:
    """The job is there, and the answer says where."""
    with _client(redis_url, max_waiting=0) as client:
        refused = client.post("/estimate", json=ASKED, headers={"Prefer": "wait=5"})
        assert client.get(refused.headers["location"]).json()["state"] == "queued"

    assert (refused.status_code, refused.json()["code"]) == (503, "TOO_MANY_WAITING")
    assert int(refused.headers["retry-after"]) >= 1


def _upload(trace: bytes, request: object = None) -> dict[str, Any]:
    asked = json.dumps({"gpu": "rtx-3060"} if request is None else request)
    return {"request": (None, asked, "application/json"), "trace": ("t.json", trace)}


def test_a_trace_is_uploaded_and_named_by_its_bytes(client: TestClient) -> None:
    """The same trace and GPU are the same job; a 'request' with a file name is taken too."""
    first = client.post("/estimate", files=_upload(b"{}"))
    named = {"request": ("request.json", b'{"gpu": "rtx-3060"}'), "trace": ("x", b"{}")}
    again = client.post("/estimate", files=named)
    other = client.post("/estimate", files=_upload(b"{ }"))

    assert first.status_code == again.status_code == other.status_code == 202
    assert first.json() == again.json() != other.json()


def test_inference_is_another_question_about_a_trace(client: TestClient) -> None:
    """And none about a job spec, which describes training."""
    training = client.post("/estimate", files=_upload(b"{}"))
    false = client.post("/estimate", files=_upload(b"{}", {"gpu": "rtx-3060", "inference": False}))
    true = client.post("/estimate", files=_upload(b"{}", {"gpu": "rtx-3060", "inference": True}))
    refused = client.post("/estimate", json=ASKED | {"inference": True})
    taken = client.post("/estimate", json=ASKED | {"inference": False})

    assert taken.status_code == 202
    assert training.json() == false.json() != true.json()
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "inference"
    assert "inference is for traces; a job spec describes training" in refused.json()["detail"]


@pytest.mark.parametrize(
    "files",
    [
        {"trace": ("t", b"{}")},
        {"request": (None, "{}")},
        {"request": (None, '{"gpu": "rtx-3060"}'), "trace": (None, "{}")},
        {"request": (None, "nothing"), "trace": ("t", b"{}")},
        {"request": (None, '{"gpu": "rtx-9999"}'), "trace": ("t", b"{}")},
        {"request": (None, '{"gpu": "t4", "allocator": "x:y"}'), "trace": ("t", b"{}")},
        {"a": ("a", b""), "b": ("b", b""), "c": ("c", b"")},
        {"a": (None, ""), "b": (None, ""), "c": (None, "")},
    ],
    ids=["no-request", "no-trace", "trace-no-file", "no-json", "gpu", "alloc", "files", "fields"],
)
def test_a_wrong_form_is_422(client: TestClient, files: dict[str, Any]) -> None:
    """Whatever is wrong with it."""
    answer = client.post("/estimate", files=files)

    assert answer.status_code == 422
    assert answer.json()["code"] in ("BAD_INPUT", "UNKNOWN_GPU")


def _with(**fields: Any) -> bytes:
    return json.dumps({"job": JOB | fields, "gpu": "t4"}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"job": 1',
        b"\xff\xfe",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        _with(batch_size=0),
        _with(batch_size=10**30),
        _with(batch_size=True),
        _with(batch_size="4"),
        _with(runtime="\ud800"),
        _with(unknown="x" * 10_000),
        _with(clip_grad_norm=0).replace(b'"clip_grad_norm": 0', b'"clip_grad_norm": 1e999'),
        _with(optimizer={"kwargs": {"lr": float("nan")}}),
        _with(allocator="max_split_size_mb:x" * 1000),
        json.dumps({"job": JOB, "gpu": {"memory_bytes": 1}}).encode(),
        json.dumps({"job": JOB, "gpu": {"memory_bytes": 1e300}}).encode(),
        json.dumps({"job": JOB, "gpu": ["t4"]}).encode(),
        json.dumps({"job": JOB, "gpu": "\x00"}).encode(),
        json.dumps(dict.fromkeys(map(str, range(50_000)), 1)).encode(),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_wrong_body_is_422_and_short(client: TestClient, body: bytes) -> None:
    """Never a 500, and never a longer answer than the question's fault deserves."""
    answer = client.post("/estimate", content=body, headers=_JSON)

    assert answer.status_code == 422
    assert answer.json()["code"] in ("BAD_INPUT", "UNKNOWN_GPU")
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 20_000
    assert client.get("/jobs").json() == {"jobs": [], "next_offset": None}


def test_a_wrong_field_is_named_with_its_value_and_the_rule(client: TestClient) -> None:
    """So that the caller can mend it."""
    problem = client.post("/estimate", content=_with(batch_size=0), headers=_JSON).json()

    assert problem["detail"].startswith("job.batch_size is 0: ")
    assert problem["errors"][0]["field"] == "job.batch_size"
    missing = client.post("/estimate", json={"job": JOB}).json()["detail"]
    assert missing.startswith("gpu is missing: ")


@pytest.mark.parametrize("path", ["/estimate", "/fit", "/max-batch", "/outcomes"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
    ids=["none", "text", "jsonx", "utf-16", "gzip"],
)
def test_another_content_type_is_415(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    """Strict: a browser's form cannot be made to ask."""
    answer = client.post(path, content=b"{}", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "WRONG_CONTENT_TYPE")


@pytest.mark.parametrize("path", ["/estimate", "/outcomes"])
def test_a_body_beyond_the_limit_is_413(redis_url: str, path: str) -> None:
    """On every route, said so beforehand or not."""
    with _client(redis_url, max_body_bytes=1024) as client:
        declared = client.post(path, content=b"x" * 2000, headers=_JSON)
        chunked = client.post(path, content=iter([b"x" * 1000] * 2), headers=_JSON)

    for answer in (declared, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/jobs/", 404, "NOT_FOUND"),
        ("GET", "/jobs/%00", 422, "BAD_INPUT"),
        ("GET", "/jobs/" + "0" * 32, 404, "UNKNOWN_JOB"),
        ("DELETE", "/jobs/" + "0" * 32, 404, "UNKNOWN_JOB"),
        ("GET", "/jobs?limit=0", 422, "BAD_INPUT"),
        ("GET", "/jobs?offset=" + "9" * 5000, 422, "BAD_INPUT"),
        ("GET", "/jobs?state=%ff%00", 422, "BAD_INPUT"),
        ("PUT", "/estimate", 405, "METHOD_NOT_ALLOWED"),
        ("TRACE", "/healthz", 405, "METHOD_NOT_ALLOWED"),
        ("OPTIONS", "/nothing", 404, "NOT_FOUND"),
    ],
)
def test_what_there_is_not_is_a_problem_document(
    client: TestClient, method: str, path: str, status: int, code: str
) -> None:
    """Unknown routes, methods, jobs and parameters."""
    answer = client.request(method, path)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]


def test_head_is_get_without_a_body_and_options_say_what_goes(client: TestClient) -> None:
    """Probes use HEAD; no other origin is told that it may ask."""
    head = client.head("/healthz")
    options = client.options("/jobs/" + "0" * 32, headers={"Origin": "https://evil.example"})

    assert (head.status_code, head.content) == (200, b"")
    assert (options.status_code, options.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS")
    assert not [name for name in options.headers if name.startswith("access-control")]


def test_pages_are_strict_and_need_no_other_server(client: TestClient) -> None:
    """/docs names nothing of another host, and its policy would not let it."""
    page = client.get("/docs")

    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "//" not in page.text.replace("<!doctype html>", "")
    for path in ("start.js", "swagger-ui.css", "swagger-ui-bundle.js"):
        assert client.get(f"/docs/{path}").status_code == 200


def test_what_nobody_foresaw_is_a_problem_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 with a code and the request's id; what went wrong is in the log, not in the answer."""

    def fail(*_: object) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(JobStore, "read", fail)
    answer = client.get("/jobs/" + "0" * 32)

    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert answer.headers["x-request-id"]
    assert "secret" not in answer.text


def test_requests_are_counted_by_route_not_by_path(client: TestClient) -> None:
    """Else anybody could make Prometheus keep a series for every path there is."""
    client.get("/jobs/" + "0" * 32)
    client.get("/a/path/of/mine")

    figures = client.get("/metrics").text
    assert 'route="/jobs/{job_id}",status="404"' in figures
    assert 'route="unknown",status="404"' in figures
    assert "mine" not in figures


@pytest.mark.parametrize("public_url", ["", "https://memgate.example/there"])
@pytest.mark.parametrize("kind", ["/estimate", "/estimate of a trace", "/fit", "/max-batch"])
def test_an_answer_says_where_it_can_be_looked_at(
    redis_url: str, public_url: str, kind: str
) -> None:
    """By POST, from the cache of the process and by GET: the same id, the same page."""
    asked: dict[str, Any] = {"json": {"job": JOB} if kind == "/fit" else ASKED}
    if kind == "/estimate of a trace":
        asked = {"files": _upload(b"{}")}
    result = {
        "/fit": Fit(gpus=[], smallest=None),
        "/max-batch": MaxBatch(
            batch_size=None, headline="", is_monotone=True, tried=[], estimate=None
        ),
    }.get(kind, RESULT)
    path = kind.partition(" ")[0]
    with _client(redis_url, public_url=public_url) as client:
        job = client.post(path, **asked).json()["id"]
        assert _store(client).finish(job, result.model_dump_json())

        answers = [client.post(path, **asked).json() for _ in range(2)]
        answers.append(client.get(f"/jobs/{job}").json()["result"])
        answers.append(client.get("/jobs").json()["jobs"][0]["result"])
        page = client.get(f"/ui/jobs/{job}")

    want = (job, f"{public_url}/ui/jobs/{job}")
    assert [(answer["id"], answer["page"]) for answer in answers] == [want] * 4
    assert (page.status_code, job in page.text) == (200, True)
