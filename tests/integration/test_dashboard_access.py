"""The dashboard over HTTP, on a real Valkey: who may see what, its manners, and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from memgate_service.dashboard.routes import ROUTERS
from memgate_service.dashboard.viewers import COOKIE
from memgate_worker.queue.keys import KeyRing, Right, Role
from tests.integration.pages import NO_ID, OURS, make_app, store_of
from tests.integration.running import make_key

#: each route, whether it is a page, and the right that it needs; None: none
ROUTES: list[tuple[str, str, bool, Right | None]] = [
    ("GET", "/", True, Right.READ_OWN),
    ("GET", "/ui/events", False, Right.READ_OWN),
    ("GET", "/ui/watch", False, Right.READ_OWN),
    ("GET", "/ui/sign-in", False, None),
    ("POST", "/ui/sign-in", False, None),
    ("GET", "/ui/session", False, None),
    ("POST", "/ui/sign-out", False, None),
    ("GET", "/ui/static/{version}/{path:path}", False, None),
    ("GET", "/ui/jobs/{job_id}", True, Right.READ_OWN),
    ("GET", "/ui/jobs/{job_id}/timeline", False, Right.READ_OWN),
    ("GET", "/ui/jobs/{job_id}/advice", False, Right.READ_OWN),
    ("POST", "/ui/jobs/{job_id}/advice", False, Right.SUBMIT),
    ("GET", "/ui/jobs/{job_id}/state", False, Right.READ_OWN),
    ("GET", "/ui/jobs/{job_id}/what-if", True, Right.SUBMIT),
    ("POST", "/ui/jobs/{job_id}/what-if", False, Right.SUBMIT),
    ("GET", "/ui/jobs/{job_id}/compared", False, Right.READ_OWN),
    ("GET", "/ui/try", True, Right.SUBMIT),
    ("POST", "/ui/try/spec", False, Right.SUBMIT),
    ("POST", "/ui/try/trace", False, Right.SUBMIT),
    ("POST", "/ui/try/fields", False, Right.SUBMIT),
    ("POST", "/ui/try/fill", False, Right.SUBMIT),
    ("GET", "/ui/try/models", False, Right.READ_OWN),
    ("GET", "/ui/accuracy", True, Right.READ_OWN),
    ("GET", "/ui/glossary", True, Right.READ_OWN),
    ("GET", "/ui/accuracy/points", False, Right.READ_OWN),
]


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Make a service where nobody needs a key; workers are played by the tests."""
    with TestClient(make_app(redis_url)) as made:
        yield made


@pytest.fixture
def guarded(redis_url: str) -> Iterator[TestClient]:
    """Make a service that wants keys."""
    with TestClient(make_app(redis_url, api_keys="required"), follow_redirects=False) as made:
        yield made


# --- who may see what


def test_every_page_is_in_the_table_of_rights() -> None:
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


@pytest.mark.parametrize("role", [None, *Role])
def test_a_route_lets_in_keys_with_its_right(
    guarded: TestClient, redis_url: str, role: Role | None
) -> None:
    """Pages send who is nobody to sign in; what pages fetch is refused."""
    if role is not None:
        _sign_in(guarded, role, redis_url)
    for method, path, is_page, needed in ROUTES:
        if path in ("/ui/sign-in", "/ui/sign-out", "/ui/events", "/ui/watch"):
            continue  # the first two change who we are, and the others never end: see below
        asked = path.replace("{job_id}", NO_ID).replace("{version}/{path:path}", "0/x")
        status = guarded.request(method, asked, headers=OURS).status_code
        if needed is None or (role is not None and needed in role.rights):
            assert status not in (401, 403, 303), (method, path)
        elif role is None:
            assert status == (303 if is_page else 401), (method, path)
        else:
            assert status == 403, (method, path)


def test_wrong_keys_are_counted(guarded: TestClient, redis_url: str) -> None:
    """Whoever guesses is soon refused, and told for how long; a few slips do no harm."""
    for _ in range(9):
        answer = guarded.post("/ui/sign-in", data={"key": "mg_0_wrong"}, headers=OURS)
        assert answer.status_code == 401
    _sign_in(guarded, Role.READ, redis_url)
    guarded.post("/ui/sign-in", data={"key": "mg_0_wrong"}, headers=OURS)
    refused = guarded.post("/ui/sign-in", data={"key": "mg_0_wrong"}, headers=OURS)

    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize("path", ["/ui/events", f"/ui/watch?job={NO_ID}"])
def test_streams_need_a_session_too(guarded: TestClient, path: str) -> None:
    """401 before anything is sent."""
    assert guarded.get(path).status_code == 401


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://testserver:81"])
@pytest.mark.parametrize(
    "path", ["/ui/try/spec", f"/ui/jobs/{NO_ID}/advice", "/ui/sign-in", "/ui/sign-out"]
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
    (name,) = store_of(guarded).redis.scan_iter("memgate:session:*")
    assert 0 < store_of(guarded).redis.ttl(name) <= 12 * 3600
    assert token.encode() not in name + store_of(guarded).redis.get(name)
    assert key.split("_", 2)[2].encode() not in store_of(guarded).redis.get(name)

    guarded.post("/ui/sign-out", headers=OURS)
    guarded.cookies.set(COOKIE, token)
    assert guarded.get("/").status_code == 303

    key = _sign_in(guarded, Role.READ, redis_url)
    KeyRing(store_of(guarded)).revoke(key.split("_")[1])
    guarded.app.state.viewers._known.clear()  # type: ignore[attr-defined]
    assert guarded.get("/").status_code == 303


def test_under_tls_the_cookie_is_for_tls_alone(redis_url: str) -> None:
    """As a proxy that speaks TLS says, too."""
    app = make_app(redis_url, api_keys="required")
    with TestClient(app, base_url="https://testserver", follow_redirects=False) as client:
        data = {"key": make_key(redis_url, Role.READ)}
        headers = {"Origin": "https://testserver"}
        cookie = client.post("/ui/sign-in", data=data, headers=headers).headers["set-cookie"]

    assert {"secure", "httponly", "samesite=strict"} <= set(cookie.lower().split("; "))


# --- manners


@pytest.mark.parametrize("path", ["/", "/ui/try", "/ui/accuracy", f"/ui/jobs/{NO_ID}"])
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
        (f"/?q={'x' * 200}", 422, "it must have 100 characters or fewer"),
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
@pytest.mark.parametrize("path", ["/", "/ui/accuracy", f"/ui/jobs/{NO_ID}"])
def test_without_the_queue_a_page_says_so_and_looks_again(path: str, keys: str) -> None:
    """503 as ever, in words; who nobody could check is shown no navigation."""
    with TestClient(make_app("redis://127.0.0.1:1/0", api_keys=keys)) as client:
        client.cookies.set(COOKIE, "x")
        page = client.get(path, headers=PERSON)
        data = client.get(f"/ui/jobs/{NO_ID}/state", headers={"Accept": "*/*"})

    assert (page.status_code, page.headers["retry-after"]) == (503, "2")
    assert "The queue cannot be reached" in page.text
    assert 'id="comes-back"' in page.text
    assert ('href="/ui/try"' in page.text) == (keys == "off")
    assert data.json()["code"] == "QUEUE_UNREACHABLE"


def test_the_api_answers_a_browser_as_it_answers_a_program(client: TestClient) -> None:
    """JSON is what a link to JSON is followed for."""
    answer = client.get(f"/jobs/{NO_ID}", headers=PERSON)

    assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_JOB")
