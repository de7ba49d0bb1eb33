"""Answers to questions whose very bytes were answered before."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from memgate.contract import WorkKind
from memgate_service.http.access import digest_of
from memgate_service.http.app import create_app
from memgate_service.http.dependencies import Dependencies
from memgate_service.http.response_cache import CachedResponse, ResponseCache, cache_key
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.keys import ApiKey, Right, Role

BODY = b'{"job": {}, "gpu": "rtx-3060"}'
NOBODY = "redis://127.0.0.1:1/0"
JSON = {"content-type": "application/json"}


def _client(**settings: object) -> TestClient:
    app = create_app(ServiceSettings.model_validate({"redis_url": NOBODY} | settings))
    deps: Dependencies = app.state.dependencies
    parts = (b'{"id":"', b'","decision":"admit"}')
    known = CachedResponse("0" * 32, parts, "today", Right.SUBMIT)
    deps.answers[cache_key(WorkKind.ESTIMATE, BODY)] = known
    return TestClient(app)


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A service without a queue that remembers one answer."""
    with _client() as client:
        yield client


def test_the_same_bytes_get_the_same_answer_without_a_queue(client: TestClient) -> None:
    """With the headers of any other answer, and counted like one."""
    answer = client.post("/estimate", content=BODY, headers=JSON | {"x-request-id": "mine-1"})

    said = answer.json()
    assert (answer.status_code, said["decision"]) == (200, "admit")
    assert answer.headers["location"] == f"/jobs/{said['id']}"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["x-memgate-cache"] == "memory"
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-content-type-options"] == "nosniff"
    counted = client.get("/metrics").text
    assert 'memgate_requests_total{method="POST",route="/estimate",status="200"} 1.0' in counted
    assert 'memgate_cache_lookups_total{found="memory"} 1.0' in counted


def test_a_body_in_pieces_is_the_same_question(client: TestClient) -> None:
    """What counts is the whole of it."""
    pieces = (BODY[:5], BODY[5:])

    assert client.post("/estimate", content=iter(pieces), headers=JSON).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "headers", "want_status"),
    [
        ("/fit", BODY, JSON, 422),
        ("/estimate", BODY + b" ", JSON, 422),
        ("/estimate", BODY, {"content-type": "text/plain"}, 415),
        ("/estimate", BODY, JSON | {"content-encoding": "gzip"}, 415),
        ("/estimate", b"x" * 3_000_000, JSON, 413),
        ("/estimate", b"", JSON, 422),
    ],
    ids=["another question", "other bytes", "no JSON", "packed", "too long", "empty"],
)
def test_all_else_goes_to_the_routes(
    client: TestClient, path: str, body: bytes, headers: dict[str, str], want_status: int
) -> None:
    """They read the body that was looked at here, and refuse it in their own words."""
    answer = client.post(path, content=body, headers=headers)

    assert answer.status_code == want_status
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_that_grows_too_long_is_refused_by_the_routes(client: TestClient) -> None:
    """A refusal while the body comes in is answered like any other."""
    pieces = (b"x" * 600_000 for _ in range(3))

    answer = client.post("/estimate", content=pieces, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")


def test_a_key_is_needed_where_keys_are() -> None:
    """A known answer is for callers with a key in force, a role that may ask, and at their rate."""
    with _client(api_keys="required", rate_limit="2/minute") as client:
        deps: Dependencies = client.app.state.dependencies  # type: ignore[attr-defined]
        for name, role in (("good", Role.SUBMIT), ("weak", Role.READ)):
            key = ApiKey(name, name, role.rights, "2026-01-01")
            deps.gatekeeper._known[digest_of(name)] = key

        def status(key: str) -> int:
            headers = JSON | {"authorization": f"Bearer {key}"}
            return client.post("/estimate", content=BODY, headers=headers).status_code

        assert client.post("/estimate", content=BODY, headers=JSON).status_code == 401
        assert status("weak") == 403
        assert [status("good"), status("good"), status("good")] == [200, 200, 429]


def test_a_request_leaves_one_line_of_json(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what a reader of logs looks for, and no line for probes."""
    client.get("/healthz")
    job = client.post("/estimate", content=BODY, headers=JSON).json()["id"]

    (line,) = capsys.readouterr().err.splitlines()
    fields = json.loads(line)
    assert fields.pop("timestamp").endswith("Z")
    assert len(fields.pop("request")) == 16
    assert fields.pop("ms") >= 0
    assert fields == {
        "event": "request",
        "level": "info",
        "method": "POST",
        "path": "/estimate",
        "status": 200,
        "job": job,
    }


def test_an_answer_is_given_while_workers_of_its_identity_are_there(client: TestClient) -> None:
    """Another identity announced: the question goes to the store; the old one back: it counts."""
    cache = client.app.state.dependencies.answers  # type: ignore[attr-defined]
    statuses: list[int] = []
    for identities in ({"today"}, {"today", "other"}, {"other"}, set(), {"today"}):
        cache.use_identities(frozenset(identities))
        statuses.append(client.post("/estimate", content=BODY, headers=JSON).status_code)

    assert statuses == [200, 200, 422, 422, 200], "without workers, the last announcement counts"


def test_before_anything_is_announced_every_answer_counts() -> None:
    """A service that has just started knows nothing better."""
    cache = ResponseCache(2)
    cache[b"key"] = CachedResponse("0" * 32, (b"{}",), "", Right.SUBMIT)

    assert cache.get(b"key") is not None
    cache.use_identities(frozenset({"today"}))
    assert cache.get(b"key") is None


def test_the_cache_is_bounded() -> None:
    """The least recently used go."""
    cache = ResponseCache(2)
    for name in (b"a", b"b", b"c"):
        cache[name] = CachedResponse("0" * 32, (name,), "", Right.SUBMIT)

    assert [cache.get(name) is not None for name in (b"a", b"b", b"c")] == [False, True, True]
