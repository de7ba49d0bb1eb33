"""Service, queue and worker on a real Valkey."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from service.app import create_app
from service.settings import ServiceSettings
from worker import health
from worker.health import MAX_SILENCE, worker_is_alive
from worker.main import QUEUE_NAME, make_worker


def test_with_a_queue_the_service_is_ready(redis_url: str) -> None:
    """The queue is asked, not assumed."""
    with TestClient(create_app(ServiceSettings(redis_url=redis_url))) as client:
        answer = client.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_a_worker_takes_json_jobs(redis_url: str) -> None:
    """What is put on the queue as JSON is run, and its result can be read back."""
    with Redis.from_url(redis_url) as connection:
        queue = Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
        job = queue.enqueue("operator.add", 20, 22)

        make_worker(redis_url).work(burst=True)

        assert job.return_value(refresh=True) == 42


def test_the_worker_program_lives_until_it_is_told_to_stop(redis_url: str) -> None:
    """It reports in while it waits, and SIGTERM ends it cleanly."""
    environment = os.environ | {"MEMGATE_REDIS_URL": redis_url}
    process = subprocess.Popen([sys.executable, "-m", "worker"], env=environment)
    try:
        deadline = time.monotonic() + 30
        while not worker_is_alive(redis_url, now=datetime.now(UTC)):
            assert time.monotonic() < deadline, "the worker never reported in"
            time.sleep(0.1)
        check = [sys.executable, "-m", "worker.health"]
        assert subprocess.run(check, env=environment, check=False).returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
    assert not worker_is_alive(redis_url, now=datetime.now(UTC))


def test_a_silent_worker_counts_as_dead(redis_url: str) -> None:
    """A heartbeat that is too old is no sign of life."""
    worker = make_worker(redis_url)
    worker.register_birth()  # type: ignore[no-untyped-call]
    try:
        now = datetime.now(UTC)
        assert worker_is_alive(redis_url, now=now)
        assert not worker_is_alive(redis_url, now=now + MAX_SILENCE + timedelta(seconds=5))
    finally:
        worker.register_death()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("reachable", [True, False])
def test_the_health_check_fails_without_a_worker(
    redis_url: str, reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker, or no queue: unhealthy, with the reason."""
    monkeypatch.setenv("MEMGATE_REDIS_URL", redis_url if reachable else "redis://127.0.0.1:1/0")

    with pytest.raises(SystemExit) as exited:
        health.main()

    reason = "no worker of this host" if reachable else "the queue cannot be reached"
    assert reason in str(exited.value.code)


def test_the_service_program_answers(redis_url: str) -> None:
    """``python -m service`` listens where its settings say."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"MEMGATE_REDIS_URL": redis_url, "MEMGATE_PORT": port}
    process = subprocess.Popen([sys.executable, "-m", "service"], env=environment)
    try:
        check = f"from urllib.request import urlopen as u; u('http://127.0.0.1:{port}/healthz')"
        deadline = time.monotonic() + 30
        while subprocess.run(
            [sys.executable, "-c", check], stderr=subprocess.DEVNULL, check=False
        ).returncode:
            assert time.monotonic() < deadline, "the service never answered"
    finally:
        process.terminate()
        # uvicorn closes down in order, then lets the signal end the process
        assert process.wait(timeout=30) in (0, -signal.SIGTERM)
