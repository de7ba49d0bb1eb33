"""The dashboard over HTTP, on a real Valkey: who may see what, what is kept, and what it costs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from memgate.gpus import parse_gpu
from memgate.pipeline import estimate
from memgate.report import Estimate
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from memgate.units import GIB
from memgate.views import view_timeline
from service.app import create_app
from service.dashboard.routes import ROUTERS
from service.dashboard.viewers import COOKIE
from service.schemas import EstimateCreate
from service.settings import ServiceSettings
from tests.builders import make_replay, mib
from tests.integration.desks import Place
from tests.integration.running import make_key, running
from worker.contract import Asker, JobError, JobRecord, Priority, Work
from worker.history import note_answer, note_failure, read_decisions
from worker.keys import KeyRing, Role
from worker.store import JobStore

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 8, 8]},
    "batch_size": 2,
}
_ID = "0" * 32

#: each route, whether it is a page, and the least role that may use it; None: everybody
ROUTES: list[tuple[str, str, bool, Role | None]] = [
    ("GET", "/", True, Role.READ),
    ("GET", "/ui/events", False, Role.READ),
    ("GET", "/ui/watch", False, Role.READ),
    ("GET", "/ui/sign-in", False, None),
    ("POST", "/ui/sign-in", False, None),
    ("GET", "/ui/session", False, None),
    ("POST", "/ui/sign-out", False, None),
    ("GET", "/ui/static/{version}/{path:path}", False, None),
    ("GET", "/ui/jobs/{job_id}", True, Role.READ),
    ("GET", "/ui/jobs/{job_id}/timeline", False, Role.READ),
    ("GET", "/ui/jobs/{job_id}/advice", False, Role.READ),
    ("POST", "/ui/jobs/{job_id}/advice", False, Role.SUBMIT),
    ("GET", "/ui/jobs/{job_id}/state", False, Role.READ),
    ("GET", "/ui/jobs/{job_id}/what-if", True, Role.SUBMIT),
    ("POST", "/ui/jobs/{job_id}/what-if", False, Role.SUBMIT),
    ("GET", "/ui/jobs/{job_id}/compared", False, Role.READ),
    ("GET", "/ui/try", True, Role.SUBMIT),
    ("POST", "/ui/try/spec", False, Role.SUBMIT),
    ("POST", "/ui/try/trace", False, Role.SUBMIT),
    ("GET", "/ui/accuracy", True, Role.READ),
    ("GET", "/ui/accuracy/points", False, Role.READ),
]

OURS = {"Origin": "http://testserver"}


def _app(redis_url: str, **settings: Any) -> FastAPI:
    return create_app(ServiceSettings(redis_url=redis_url, **settings))


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Make a service where nobody needs a key; workers are played by the tests."""
    with TestClient(_app(redis_url)) as made:
        yield made


@pytest.fixture
def guarded(redis_url: str) -> Iterator[TestClient]:
    """Make a service that wants keys."""
    with TestClient(_app(redis_url, api_keys="required"), follow_redirects=False) as made:
        yield made


def _store(client: TestClient) -> JobStore:
    store = client.app.state.parts.queue.store  # type: ignore[attr-defined]
    assert isinstance(store, JobStore)
    return store


def _answer(store: JobStore, work: Work, asked_by: Asker = Asker.CALLER) -> JobRecord:
    """Do a worker's work: an answer that was worked out, its curve, and a line in the log."""
    assert work.gpu is not None
    timeline = Timeline(
        events=(Alloc(0, mib(30)), Free(0), Alloc(1, mib(30))),
        labels=(Label(Category.ACTIVATIONS, "fc"), Label(Category.PARAMETERS, "fc")),
    )
    target = parse_gpu(work.gpu.model_dump(exclude_none=True))
    said: Estimate = estimate(timeline, target, engine="phantom", runtime="torch", versions={})
    said = said.model_copy(update={"timings_ms": {"run": 7, "trace": 8, "replay": 1, "total": 9}})
    store.create(work.id(), work, Priority.NORMAL, asked_by)
    record = store.read(work.id())
    replayed = make_replay(*timeline.events)
    store.save_view(work.id(), view_timeline(timeline, replayed).model_dump_json())
    store.finish(work.id(), said.model_dump_json())
    note_answer(store, record, said)
    return store.read(work.id())


def _work(**changes: Any) -> Work:
    return EstimateCreate.model_validate({"job": JOB | changes, "gpu": "rtx-3060"}).work()


# --- who may see what


def test_every_page_is_in_the_table_of_roles() -> None:
    """A new route is not forgotten."""
    routes = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }

    assert routes == {(method, path) for method, path, _, _ in ROUTES}


def _sign_in(client: TestClient, role: Role, redis_url: str) -> str:
    key = make_key(redis_url, role)
    answer = client.post("/ui/sign-in", data={"key": key}, headers=OURS)
    assert answer.status_code == 303
    return key


@pytest.mark.parametrize("role", [None, Role.READ, Role.SUBMIT, Role.ADMIN])
def test_a_route_lets_in_its_role_and_those_above(
    guarded: TestClient, redis_url: str, role: Role | None
) -> None:
    """Pages send who is nobody to sign in; what pages fetch is refused."""
    if role is not None:
        _sign_in(guarded, role, redis_url)
    for method, path, is_page, needed in ROUTES:
        if path in ("/ui/sign-in", "/ui/sign-out", "/ui/events", "/ui/watch"):
            continue  # the first two change who we are, and the others never end: see below
        asked = path.replace("{job_id}", _ID).replace("{version}/{path:path}", "0/x")
        status = guarded.request(method, asked, headers=OURS).status_code
        if needed is None or (role is not None and role >= needed):
            assert status not in (401, 403, 303), (method, path)
        elif role is None:
            assert status == (303 if is_page else 401), (method, path)
        else:
            assert status == 403, (method, path)


@pytest.mark.parametrize("path", ["/ui/events", f"/ui/watch?job={_ID}"])
def test_streams_need_a_session_too(guarded: TestClient, path: str) -> None:
    """401 before anything is sent."""
    assert guarded.get(path).status_code == 401


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://testserver:81"])
@pytest.mark.parametrize(
    "path", ["/ui/try/spec", f"/ui/jobs/{_ID}/advice", "/ui/sign-in", "/ui/sign-out"]
)
def test_a_form_of_another_site_is_refused(
    guarded: TestClient, redis_url: str, path: str, origin: str | None
) -> None:
    """Whatever cookies a browser sends along; nothing is asked, and nobody is signed in or out."""
    _sign_in(guarded, Role.ADMIN, redis_url)
    headers = {} if origin is None else {"Origin": origin}

    answer = guarded.post(path, data={"spec": "x"}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "OTHER_ORIGIN")
    assert guarded.get("/").status_code == 200


@pytest.mark.parametrize(
    ("asked", "leads_to"),
    [
        ("/ui/accuracy", "/ui/accuracy"),
        ("https://evil.example", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
    ],
)
def test_signing_in_leads_nowhere_else(
    guarded: TestClient, redis_url: str, asked: str, leads_to: str
) -> None:
    """Only to a path of ours."""
    key = make_key(redis_url, Role.READ)

    answer = guarded.post("/ui/sign-in", data={"key": key, "next": asked}, headers=OURS)

    assert answer.headers["location"] == leads_to


def test_a_session_ends_with_its_time_its_key_or_by_choice(
    guarded: TestClient, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store forgets it; a cookie that somebody kept is worth nothing."""
    key = _sign_in(guarded, Role.READ, redis_url)
    token = guarded.cookies[COOKIE]
    (name,) = _store(guarded).redis.scan_iter("memgate:session:*")
    assert 0 < _store(guarded).redis.ttl(name) <= 12 * 3600
    assert token.encode() not in name + _store(guarded).redis.get(name)
    assert key.split("_", 2)[2].encode() not in _store(guarded).redis.get(name)

    guarded.post("/ui/sign-out", headers=OURS)
    guarded.cookies.set(COOKIE, token)
    assert guarded.get("/").status_code == 303

    key = _sign_in(guarded, Role.READ, redis_url)
    KeyRing(_store(guarded)).revoke(key.split("_")[1])
    guarded.app.state.viewers._known.clear()  # type: ignore[attr-defined]
    assert guarded.get("/").status_code == 303


def test_under_tls_the_cookie_is_for_tls_alone(redis_url: str) -> None:
    """As a proxy that speaks TLS says, too."""
    app = _app(redis_url, api_keys="required")
    with TestClient(app, base_url="https://testserver", follow_redirects=False) as client:
        data = {"key": make_key(redis_url, Role.READ)}
        headers = {"Origin": "https://testserver"}
        cookie = client.post("/ui/sign-in", data=data, headers=headers).headers["set-cookie"]

    assert {"secure", "httponly", "samesite=strict"} <= set(cookie.lower().split("; "))


# --- manners


@pytest.mark.parametrize("path", ["/", "/ui/try", "/ui/accuracy", f"/ui/jobs/{_ID}"])
def test_a_page_has_a_strict_policy_and_nothing_inline(client: TestClient, path: str) -> None:
    """Nothing from elsewhere, nothing inline: no script, no style, no handler."""
    answer = client.get(path)

    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert not re.findall(r"<script(?![^>]*(src=|application/json))", answer.text)
    assert not re.findall(r"<style|\sstyle=|\son\w+=|https?://", answer.text)


def test_files_may_be_kept_for_good(client: TestClient) -> None:
    """Their address changes with them; every address on a page, and in a module, is there."""
    page = client.get("/").text
    paths = set(re.findall(r'"(/ui/static/[^"]+)"', page))
    assert len(paths) >= 5
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        folder = path.rpartition("/")[0]
        for name in re.findall(r'from "\./([\w./]+)"', answer.text):
            assert client.get(f"{folder}/{name}").status_code == 200
    plain = client.get(max(paths), headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    other = re.sub(r"static/\w+/", "static/0000/", max(paths))
    assert client.get(other).status_code == 404


PERSON = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/ui/jobs/abc", 404, "no job &#39;abc&#39;"),
        ("/ui/jobs/%3Cimg%20src=x%3E", 404, "no job &#39;&lt;img src=x&gt;&#39;"),
        ("/nosuch", 404, "no page &#39;/nosuch&#39;"),
        (f"/?q={'x' * 200}", 422, "at most 100 characters"),
    ],
)
def test_a_person_is_shown_an_error_as_a_page(
    client: TestClient, path: str, status: int, words: str
) -> None:
    """With the same manners as any other; a program gets a problem document."""
    page, document = client.get(path, headers=PERSON), client.get(path)

    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert words in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert 'href="/ui/accuracy"' in page.text
    assert document.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("keys", ["off", "required"])
@pytest.mark.parametrize("path", ["/", "/ui/accuracy", f"/ui/jobs/{_ID}"])
def test_without_the_queue_a_page_says_so_and_looks_again(path: str, keys: str) -> None:
    """503 as ever, in words; who nobody could check is shown no navigation."""
    with TestClient(_app("redis://127.0.0.1:1/0", api_keys=keys)) as client:
        client.cookies.set(COOKIE, "x")
        page = client.get(path, headers=PERSON)
        data = client.get(f"/ui/jobs/{_ID}/state", headers={"Accept": "*/*"})

    assert (page.status_code, page.headers["retry-after"]) == (503, "2")
    assert "The queue cannot be reached" in page.text
    assert 'id="comes-back"' in page.text
    assert ('href="/ui/try"' in page.text) == (keys == "off")
    assert data.json()["code"] == "QUEUE_UNREACHABLE"


def test_the_api_answers_a_browser_as_it_answers_a_program(client: TestClient) -> None:
    """JSON is what a link to JSON is followed for."""
    answer = client.get(f"/jobs/{_ID}", headers=PERSON)

    assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_JOB")


# --- what is kept


def test_decisions_are_counted_by_the_minute_and_logged(client: TestClient) -> None:
    """By who answers; what pages asked is in the log and in no count."""
    store = _store(client)
    record = _answer(store, _work())
    _answer(store, _work(batch_size=3), Asker.DASHBOARD)
    failed = _work(batch_size=4)
    store.create(failed.id(), failed, Priority.NORMAL)
    error = JobError(code="BAD_INPUT", message="x" * 500, is_callers=True)
    note_failure(store, store.read(failed.id()), error)

    (counts,) = store.minutes([int(time.time()) // 60])
    log = read_decisions(store, 10)

    assert (counts["outcome:admit"], counts["outcome:refused"]) == (1, 1)
    assert record.result is not None
    assert counts["saved_bytes"] == record.result["headroom_bytes"]
    assert counts["runs:made"] == 2
    assert [(one.outcome, one.is_advice) for one in log] == [
        ("refused", False), ("admit", True), ("admit", False),
    ]  # fmt: skip
    assert (log[2].job, log[2].gpu, log[2].subject) == (record.id, "rtx-3060", "resnet18")
    assert len(log[0].message) == 200


def test_a_real_desk_leaves_a_decision(make_place: Callable[..., Place]) -> None:
    """Workers write the log: what they answer, and what they cannot."""
    place = make_place()
    place.submit()
    place.work()

    (decision,) = read_decisions(place.store, 10)

    assert (decision.kind, decision.outcome) == ("fit", "answered")
    assert place.redis.ttl("memgate:decisions") > 0
    (minute,) = place.redis.scan_iter("memgate:minute:*")
    assert 0 < place.redis.ttl(minute) <= 26 * 3600


def test_known_answers_are_counted_for_all_services_together(
    redis_url: str, client: TestClient
) -> None:
    """In the process while it runs, in the store now and then, and when it ends."""
    body = {"job": JOB, "gpu": "rtx-3060"}
    _answer(_store(client), _work())
    for _ in range(3):
        assert client.post("/estimate", json=body).status_code == 200
    with TestClient(_app(redis_url)) as other:
        assert other.post("/estimate", json=body).status_code == 200

    (counts,) = _store(client).minutes([int(time.time()) // 60])

    assert counts["cache:store"] == 1
    client.__exit__()
    (counts,) = _store(client).minutes([int(time.time()) // 60])
    assert (counts["cache:memory"], counts["cache:store"]) == (2, 2)


def test_the_overview_shows_what_is_stored(client: TestClient) -> None:
    """Rendered by the server: without scripts, too."""
    record = _answer(_store(client), _work())
    client.app.state.overview._seen = None  # type: ignore[attr-defined]

    page = client.get("/").text

    assert f'href="/ui/jobs/{record.id}"' in page
    assert '<span data-live="admit">1</span>' in page
    assert "No worker is there" in page


def test_viewers_share_what_is_read(client: TestClient) -> None:
    """Twenty pages within a second are one look at the store."""
    reader = client.app.state.overview  # type: ignore[attr-defined]
    reader._clock = lambda: 1e9
    before = reader.num_reads

    for _ in range(20):
        assert client.get("/").status_code == 200

    assert reader.num_reads == before + 1


def test_minutes_that_are_over_are_read_once(client: TestClient) -> None:
    """A day of them at first, then the last two."""
    store, reader = _store(client), client.app.state.overview  # type: ignore[attr-defined]
    now = [time.time()]
    reader._clock = lambda: now[0]
    asked: list[int] = []
    read = store.minutes

    def note(minutes: Any) -> Any:
        asked.append(len(minutes))
        return read(minutes)

    store.minutes = note  # type: ignore[method-assign]
    for _ in range(3):
        reader.read()
        now[0] += 61

    assert asked[0] == 1440
    assert set(asked[1:]) <= {2, 3}


# --- a job


def test_the_curve_of_a_job_comes_in_the_size_that_is_asked_for(client: TestClient) -> None:
    """With where the GPU ends; a job without one is told as such."""
    record = _answer(_store(client), _work())

    view = client.get(f"/ui/jobs/{record.id}/timeline", params={"points": 16}).json()
    missing = client.get(f"/ui/jobs/{_ID}/timeline")

    assert view["num_events"] == 3
    assert view["events"] == [0, 1, 2]
    assert 11 * GIB < view["capacity_bytes"] < 11.65 * GIB
    assert missing.status_code == 404


@pytest.mark.parametrize(
    "gpu",
    ["a10g", {"memory_bytes": 9 * GIB, "compute_capability": "8.6"},
     {"name": "t4", "already_used_bytes": GIB}],
)  # fmt: skip
def test_a_job_is_edited_as_it_was_asked(client: TestClient, gpu: Any) -> None:
    """The form holds its spec: unchanged, it is the same question."""
    hostile = JOB | {"model": {"source": "torchvision", "name": "</textarea><b>: # no"}}
    work = EstimateCreate.model_validate({"job": hostile, "gpu": gpu}).work()
    _store(client).create(work.id(), work, Priority.NORMAL)

    page = client.get(f"/ui/try?job={work.id()}").text
    spec = unescape(page.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0])
    chosen = re.search(r'<option value="([^"]+)" selected', page)
    assert chosen is not None
    form = {"spec": spec, "gpu": chosen[1], "engine": "auto"}
    asked = client.post("/ui/try/spec", data=form, headers=OURS)

    assert "<b>" not in page
    assert asked.json() == {"location": f"/ui/jobs/{work.id()}"}
    assert client.get(f"/ui/try?job={_ID}").status_code == 200, "one that is gone is an example"


def test_advice_is_asked_once_at_low_priority(client: TestClient) -> None:
    """By whoever opens the page first; then everybody sees what became of it."""
    record = _answer(_store(client), _work(optimizer={"name": "Adam"}))

    before = client.get(f"/ui/jobs/{record.id}/advice").json()
    asked = client.post(f"/ui/jobs/{record.id}/advice", headers=OURS).json()
    again = client.post(f"/ui/jobs/{record.id}/advice", headers=OURS).json()

    assert before["waiting"] == []
    assert len(asked["waiting"]) == 6
    assert again == asked
    records = [_store(client).read(job) for job in asked["waiting"]]
    assert {one.priority for one in records} == {Priority.LOW}
    assert {one.asked_by for one in records} == {Asker.DASHBOARD}


def test_what_if_says_what_it_will_take(client: TestClient) -> None:
    """A run that is stored is replayed; what is not has to be run."""
    record = _answer(_store(client), _work())
    same = {"batch_size": "2", "precision": "fp32", "optimizer": "SGD"}

    new = client.post(
        f"/ui/jobs/{record.id}/what-if", data=same | {"batch_size": "5"}, headers=OURS
    ).json()
    unchanged = client.post(f"/ui/jobs/{record.id}/what-if", data=same, headers=OURS).json()
    wrong = client.post(
        f"/ui/jobs/{record.id}/what-if", data=same | {"batch_size": "x"}, headers=OURS
    )

    assert (new["is_open"], "a new run is needed" in new["html"]) == (True, True)
    assert (unchanged["job"], unchanged["is_open"]) == (record.id, False)
    assert wrong.status_code == 422
    assert "batch_size" in wrong.text


def test_a_page_of_decisions_of_ten_thousand_is_quick(client: TestClient) -> None:
    """As quick as one of a hundred, give or take: it reads what it shows."""
    store = _store(client)
    (line,) = _log_one(store)

    def seconds() -> float:
        client.app.state.overview._seen = None  # type: ignore[attr-defined]
        start = time.perf_counter()
        assert client.get("/").status_code == 200
        return time.perf_counter() - start

    for number in range(100):
        store.note({}, _later(line, number))
    few = min(seconds() for _ in range(5))
    for number in range(10_000):
        store.note({}, _later(line, number))
    many = min(seconds() for _ in range(5))

    assert many < 4 * few + 0.05


def _log_one(store: JobStore) -> list[bytes]:
    _answer(store, _work())
    return store.decisions(0, 1)


def _later(line: bytes, number: int) -> bytes:
    document = json.loads(line)
    return json.dumps(document | {"at": document["at"] + number}).encode()


# --- the end


def test_a_service_that_is_told_to_stop_lets_its_viewers_go(redis_url: str, tmp_path: Path) -> None:
    """Streams end at once; nobody waits for browsers that stay for hours."""
    heard: list[bytes] = []
    with running(redis_url, tmp_path / "log") as service:
        answer = urlopen(f"{service.url}/ui/events", timeout=60)
        heard.append(answer.readline())
        reading = threading.Thread(target=lambda: heard.append(answer.read()))
        reading.start()
        time.sleep(1.5)
        start = time.monotonic()
    stopped_after = time.monotonic() - start
    reading.join(30)
    answer.close()

    assert heard[0].startswith(b"retry:")
    assert b"event: texts" in heard[1]
    assert stopped_after < 8
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert not [line for line in logged if line.get("level") == "error"]


def test_more_pages_than_may_be_live_are_told(redis_url: str, tmp_path: Path) -> None:
    """503 with a reason; the page itself is there."""
    with running(redis_url, tmp_path / "log", max_viewers=0) as service:
        answer = service.say(b"GET /ui/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        page = service.say(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert b" 503 " in answer.split(b"\r\n")[0]
    assert b"TOO_MANY_VIEWERS" in answer
    assert b" 200 " in page.split(b"\r\n")[0]
