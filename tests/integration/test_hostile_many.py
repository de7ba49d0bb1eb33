"""Ten thousand hostile requests, a thousand at a time: the service stays small and polite.

``make hostile`` runs it.
"""

from __future__ import annotations

import gzip
import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from memgate.units import MIB
from memgate_worker.queue.keys import Role
from tests.integration.running import make_key
from tests.running import running, serving, wait_until
from tests.valkey import running_valkey

_NUM_REQUESTS = 10_000
_NUM_CLIENTS = 16
_MAX_BYTES = 150 * 10**6

#: codes of refusals that a program may repeat, which must say when
_PASSING = (429, 503)


class Sent(NamedTuple):
    """A request."""

    method: str
    path: str
    body: bytes = b""
    content: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012  never changed


def _json(path: str, document: object) -> Sent:
    return Sent("POST", path, json.dumps(document).encode())


def _spec(**changed: object) -> dict[str, Any]:
    job = {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 32, 32]},
        "batch_size": 2,
    }
    return {"job": job | changed, "gpu": "t4"}


def _form(trace: bytes, request: bytes = b'{"gpu": "t4"}') -> Sent:
    lines = [
        b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n' + request,
        b'--b\r\nContent-Disposition: form-data; name="trace"; filename="t"\r\n\r\n' + trace,
        b"--b--\r\n",
    ]
    return Sent("POST", "/estimate", b"\r\n".join(lines), "multipart/form-data; boundary=b")


def _fat(chance: random.Random) -> Sent:
    """A spec as large as one may be, each another one."""
    filling = chance.randbytes(60_000).hex()
    config = {"class": "LlamaForCausalLM", "config": {"note": filling}}
    return _json("/estimate", _spec(model={"source": "transformers"} | config))


#: a bomb, and what is no trace at all
_BOMB = gzip.compress(b'{"traceEvents":[' + b"{}," * 2_000_000 + b"{}]}")

_KINDS: list[Callable[[random.Random], Sent]] = [
    _fat,
    lambda chance: _json("/estimate", _spec(batch_size=chance.randint(1, 10_000))),
    lambda chance: _json("/estimate", _spec(batch_size=chance.choice([0, -1, 1 << 62, "x", None]))),
    lambda _: _json("/estimate", _spec(gradient_accumulation_steps=1 << 40)),
    lambda _: _json("/max-batch", _spec(input={"shape": [1 << 29, 1 << 29]})),
    lambda _: Sent("POST", "/fit", b'{"job":' * 50_000),
    lambda _: Sent("POST", "/fit", b"[" * 900_000),
    lambda _: Sent("POST", "/fit", b"\xff\xfe" * 1000),
    lambda _: Sent("POST", "/estimate", b"x" * (2 * MIB)),
    lambda chance: _form(chance.randbytes(2 * MIB)),
    lambda _: _form(_BOMB),
    lambda _: _form(b"[" * 1_000_000, b"{" * 1000),
    lambda _: Sent("POST", "/estimate", b"--b", "multipart/form-data; boundary=b"),
    lambda _: Sent("POST", "/estimate", b"a=b", "application/x-www-form-urlencoded"),
    lambda chance: Sent("GET", f"/jobs?limit=200&offset={chance.randint(0, 100)}"),
    lambda _: Sent("GET", "/jobs?state=running&limit=200"),
    lambda _: Sent("GET", "/jobs?limit=1000000"),
    lambda chance: Sent("GET", f"/jobs/{chance.randbytes(16).hex()}"),
    lambda chance: Sent("DELETE", f"/jobs/{chance.randbytes(16).hex()}"),
    lambda _: Sent("GET", "/jobs/%00%ff/timeline"),
    lambda _: Sent("GET", "/" + "a" * 20_000),
    lambda _: Sent("GET", "/gpus", headers={"X-Large": "a" * 30_000}),
    lambda _: Sent("PUT", "/estimate", b"{}"),
    lambda _: Sent("GET", "/ui/jobs/../../etc/passwd"),
    lambda _: _json("/outcomes", {"job": "no", "peak_bytes": -1}),
    lambda _: _json("/webhooks/kubernetes/validate", {"request": {"object": {"spec": [1] * 999}}}),
    lambda _: Sent("POST", "/estimate", b"{}", headers={"Prefer": "wait=99999999"}),
    lambda _: Sent("GET", "/ui/jobs"),
    lambda _: Sent("GET", "/metrics"),
]


@dataclass(slots=True)
class _Seen:
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    peak_bytes: int = 0


def _send(port: int, sent: Sent, key: str | None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": sent.content} | sent.headers
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request(sent.method, sent.path, sent.body or None, headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    finally:
        connection.close()


def _judge(sent: Sent, status: int, headers: dict[str, str], body: bytes) -> str | None:
    """Return what is wrong with an answer."""
    what = f"{sent.method} {sent.path[:50]}: {status} {body[:200]!r}"
    if status == 500:
        return what
    if status in (429, 503, 507):
        has_code = bool(json.loads(body).get("code"))
        if not has_code or (status in _PASSING and "retry-after" not in headers):
            return what
    return None


def _attack(port: int, keys: list[str | None], process: psutil.Process) -> _Seen:
    seen, lock = _Seen(), threading.Lock()

    def one(number: int) -> None:
        chance = random.Random(number)
        sent = chance.choice(_KINDS)(chance)
        try:
            status, headers, body = _send(port, sent, chance.choice(keys))
            found = _judge(sent, status, headers, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            status, found = 0, f"{sent.method} {sent.path[:50]}: {error!r}"
        with lock:
            seen.statuses[status] += 1
            seen.peak_bytes = max(seen.peak_bytes, process.memory_info().rss)
            if found:
                seen.wrong.append(found)

    with ThreadPoolExecutor(_NUM_CLIENTS) as clients:
        list(clients.map(one, range(_NUM_REQUESTS)))
    return seen


@pytest.mark.slow
def test_ten_thousand_hostile_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GIVEN a worker and keys THEN no 500, no broken connection, no worker lost, below 150 MB."""
    with running_valkey() as url:
        worker_log, log = tmp_path / "worker.log", tmp_path / "service.log"
        settings: dict[str, Any] = {"api_keys": "required", "rate_limit": "3000/minute"}
        with (
            running("tests.integration.stub_worker", worker_log, redis_url=url) as worker,
            serving(log, redis_url=url, **settings) as served,
        ):
            keys = [*(make_key(url, role) for role in (Role.SUBMIT, Role.READ)), None]
            wait_until(lambda: _send(served.port, Sent("GET", "/readyz"), None)[0] == 200, "ready")
            process = psutil.Process(served.process.pid)
            seen = _attack(served.port, [keys[0], *keys], process)
            is_alive = worker.poll() is None
            ready = _send(served.port, Sent("GET", "/readyz"), None)[0]
    with capsys.disabled():
        print(f"\n{dict(seen.statuses)}, at most {seen.peak_bytes / 10**6:.0f} MB")  # noqa: T201

    assert not seen.wrong, seen.wrong[:10]
    assert is_alive
    assert ready == 200
    assert seen.peak_bytes < _MAX_BYTES
    assert {200, 401, 422} <= set(seen.statuses)
