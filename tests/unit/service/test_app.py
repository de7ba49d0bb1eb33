"""The HTTP service without a queue: probes and manners."""

from __future__ import annotations

import subprocess
import sys

from fastapi.testclient import TestClient

from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings


def _client() -> TestClient:
    nobody = "redis://:secret@127.0.0.1:1/0"
    return TestClient(create_app(ServiceSettings(redis_url=nobody)))


def test_a_living_process_is_healthy() -> None:
    """Health does not depend on the queue: restarting would not mend it."""
    with _client() as client:
        answer = client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_without_a_queue_it_is_not_ready_and_says_why() -> None:
    """503, a problem document, what to check; the password stays secret."""
    with _client() as client:
        answer = client.get("/readyz")

    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "QUEUE_UNREACHABLE"
    assert "MEMGATE_REDIS_URL" in answer.json()["detail"]
    assert "secret" not in answer.text


def test_the_service_imports_no_torch() -> None:
    """The service image has none."""
    imported = "memgate_service.http.app, memgate_service.cli.main"
    check = f"import sys, {imported}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
