"""The programs themselves: they report in, are found dead, and end when they are told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from fastapi.testclient import TestClient
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from memgate.contract import JobState, Work
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker import health
from memgate_worker.health import MAX_SILENCE, WORKER_TTL_SECONDS, worker_is_alive
from tests.integration.queue_place import Place, Stub
from tests.integration.whole import Whole, wait_until
from tests.running import answers, listening_url, plain_environment, serving

_ESTIMATE = {
    "job": {
        "model": {"source": "torchvision", "name": "squeezenet1_1"},
        "input": {"shape": [3, 64, 64]},
        "batch_size": 3,
        "iterations": 1,
    },
    "gpu": "t4",
}


def test_the_service_is_ready_with_a_queue_and_a_worker(place: Place) -> None:
    """Both are asked for, not assumed."""
    with TestClient(create_app(ServiceSettings(redis_url=place.settings.redis_url))) as client:
        before = client.get("/readyz")
        place.worker.register_birth()
        after = client.get("/readyz")

    assert (before.status_code, before.json()["code"]) == (503, "NO_WORKER")
    assert before.json()["fault"] == "operator"
    assert "retry-after" not in before.headers
    assert (after.status_code, after.json()["status"]) == (200, "ready")


def test_without_its_queue_the_service_accepts_nothing() -> None:
    """503, soon, and when to come back."""
    with TestClient(create_app(ServiceSettings(redis_url="redis://127.0.0.1:1/0"))) as client:
        answer = client.post("/estimate", json=_ESTIMATE)

    assert (answer.status_code, answer.json()["code"]) == (503, "QUEUE_UNREACHABLE")
    assert (answer.json()["fault"], answer.headers["retry-after"]) == ("passing", "2")


def test_the_worker_program_lives_until_it_is_told_to_stop(redis_url: str) -> None:
    """It reports in while it waits, and SIGTERM ends it cleanly."""
    environment = os.environ | {"MEMGATE_REDIS_URL": redis_url, "MEMGATE_QUEUES": "fast"}
    process = subprocess.Popen([sys.executable, "-m", "memgate_worker"], env=environment)
    try:
        wait_until(
            lambda: worker_is_alive(redis_url, now=datetime.now(UTC)), 60, "it never reported in"
        )
        check = [sys.executable, "-m", "memgate_worker.health"]
        assert subprocess.run(check, env=environment, check=False).returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    assert not worker_is_alive(redis_url, now=datetime.now(UTC))


def test_a_silent_worker_counts_as_dead(place: Place) -> None:
    """A sign of life that is too old is none."""
    place.worker.register_birth()
    now = datetime.now(UTC)

    assert worker_is_alive(place.settings.redis_url, now=now)
    later = now + MAX_SILENCE + timedelta(seconds=5)
    assert not worker_is_alive(place.settings.redis_url, now=later)


def test_a_worker_that_was_killed_at_work_is_forgotten_soon(
    make_place: Callable[..., Place],
) -> None:
    """Its entry is good for seconds, not for as long as the task may take."""
    place = make_place()
    place.worker.register_birth()
    place.worker.heartbeat(24 * 3600)

    assert 0 < place.redis.ttl(place.worker.key) <= WORKER_TTL_SECONDS
    assert place.client.num_workers() == 1


def test_a_worker_that_the_server_forgot_reports_in_again(place: Place) -> None:
    """With its queues: else it would count for nothing."""
    place.worker.register_birth()
    place.lose_queue()
    assert place.client.num_workers() == 0

    place.worker.report_in()

    assert place.client.num_workers() == 1


def _expire(place: Place) -> None:
    """Let the worker's entry run out, as it does while the worker is paused."""
    place.redis.pexpire(place.worker.key, 1)
    wait_until(lambda: not place.redis.exists(place.worker.key), 10, "it never ran out")


def _expire_and_strike_off(place: Place) -> None:
    """Let it run out, and have another worker notice that."""
    _expire(place)
    assert not SimpleWorker.all(connection=place.redis, serializer=JSONSerializer)
    assert place.client.num_workers() == 0


def _strike_off(place: Place) -> None:
    """Lose the list of workers alone: it was struck off while it reported in."""
    for key in place.redis.keys("rq:workers*"):
        place.redis.delete(key)


def _lose_a_field(place: Place) -> None:
    """Lose a part of the entry."""
    place.redis.hdel(place.worker.key, "queues")


@pytest.mark.parametrize(
    "lose",
    [_expire, _expire_and_strike_off, _strike_off, _lose_a_field, Place.lose_queue],
    ids=["clock-ahead", "paused", "struck-off", "partial", "server-was-replaced"],
)
def test_a_worker_is_whole_again_after_a_heartbeat_of_rqs(
    place: Place, lose: Callable[[Place], None]
) -> None:
    """rq's heartbeat makes an entry without queues or host; reporting in completes it, for good."""
    place.worker.register_birth()
    place.worker.set_state("busy")
    [before] = place.client.roster()
    lose(place)
    place.worker.heartbeat()
    assert place.client.num_workers() == 0 or place.client.roster() == []

    for _ in range(2):
        place.worker.report_in()

        assert place.client.num_workers() == 1
        assert place.client.roster() == [before]
        assert worker_is_alive(place.settings.redis_url, now=datetime.now(UTC))
        assert 0 < place.redis.ttl(place.worker.key) <= WORKER_TTL_SECONDS
    members = {key: place.redis.smembers(key) for key in place.redis.keys("rq:workers*")}
    assert len(members) == 1 + len(place.worker.queues)
    assert set(map(len, members.values())) == {1}


def test_a_worker_that_is_forgotten_at_work_is_still_seen_at_it(
    make_place: Callable[..., Place],
) -> None:
    """With the job it works on; and idle once that is done."""
    seen: list[tuple[bool, str | None]] = []

    def forget(_: Work) -> None:
        _expire_and_strike_off(place)
        place.worker.heartbeat()
        place.worker.report_in()
        seen.extend((worker.is_busy, worker.job) for worker in place.client.roster())

    place = make_place(Stub(forget))
    record = place.submit()
    place.work()

    assert seen == [(True, record.id)]
    assert place.read().state is JobState.DONE


def test_the_service_is_ready_again_after_its_worker_was_paused(place: Place) -> None:
    """Otherwise a cluster would take it out of service for ever."""
    place.worker.register_birth()
    with TestClient(create_app(ServiceSettings(redis_url=place.settings.redis_url))) as client:
        _expire(place)
        while_paused = client.get("/readyz")
        place.worker.heartbeat()
        place.worker.report_in()
        after = client.get("/readyz")

    assert (while_paused.status_code, while_paused.json()["code"]) == (503, "NO_WORKER")
    assert after.status_code == 200


def test_a_store_that_drops_entries_is_no_plain_ready(place: Place) -> None:
    """Nothing that was accepted may be lost: the operator is told by which setting it would be."""
    place.worker.register_birth()
    place.redis.config_set("maxmemory", "1gb")
    place.redis.config_set("maxmemory-policy", "allkeys-lru")
    with TestClient(create_app(ServiceSettings(redis_url=place.settings.redis_url))) as client:
        said = client.get("/readyz").json()

    assert (said["status"], said["code"]) == ("degraded", "STORE_EVICTS")
    assert "allkeys-lru" in said["detail"]


def test_a_worker_reports_in_neither_before_it_begins_nor_after_it_has_ended(place: Place) -> None:
    """rq would refuse to begin, or a worker that is gone would count as there."""
    place.worker.report_in()
    assert not place.redis.exists(place.worker.key)

    place.worker.register_birth()
    place.worker.register_death()  # type: ignore[no-untyped-call]
    place.worker.report_in()

    assert place.client.num_workers() == 0
    assert place.client.roster() == []


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


def test_the_service_program_answers(redis_url: str, tmp_path: Path) -> None:
    """``python -m memgate_service`` takes a port that is free, says which, and ends in order."""
    with serving(tmp_path / "log", redis_url=redis_url) as served:
        assert answers(f"{served.url}/healthz")
        served.process.terminate()
        # uvicorn closes down in order, then lets the signal end the process
        assert served.process.wait(timeout=60) in (0, -signal.SIGTERM)


def test_a_service_listens_on_a_socket_that_it_inherits(redis_url: str, tmp_path: Path) -> None:
    """As systemd's socket units and ``memgate up`` hand it over; a wrong number is explained."""
    environment = plain_environment() | {"MEMGATE_REDIS_URL": redis_url}
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        (tmp_path / "log").open("wb") as log,
    ):
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "memgate_service"],
            env=environment | {"MEMGATE_LISTEN_FD": str(number)},
            pass_fds=[number],
            stderr=log,
        )
        try:
            port = listener.getsockname()[1]
            # what comes before it has started waits, and is answered
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
                assert answer.status == 200
            assert listening_url(tmp_path / "log") == f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "memgate_service"],
        env=environment | {"MEMGATE_LISTEN_FD": "99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("MEMGATE_LISTEN_FD is 99: that is not an open socket")


def test_two_starts_for_one_port_are_told_apart(tmp_path: Path) -> None:
    """The second is refused before anything of it runs, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        memgate = str(Path(sys.executable).parent / "memgate")
        command = [memgate, "up", "--data", str(tmp_path / "data"), "--port", port]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use)" in ran.stderr
    assert "--port" in ran.stderr


def test_without_a_runtime_the_service_is_degraded(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is ready for uploads, and names the command; a second worker may have the runtime."""
    monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path))
    place.announce()
    with TestClient(create_app(ServiceSettings(redis_url=place.settings.redis_url))) as client:
        answer = client.get("/readyz")

    assert answer.status_code == 200
    said = answer.json()
    assert (said["status"], said["code"]) == ("degraded", "RUNTIME_MISSING")
    assert said["detail"].startswith("no runtime: no worker has torch-2.14")
    assert said["detail"].endswith("run: memgate runtimes install torch-2.14")


def test_without_a_runtime_it_starts_and_says_what_is_missing(tmp_path: Path) -> None:
    """With the command that installs it, before the first question is answered with the same."""
    nowhere = {"MEMGATE_RUNTIMES_DIR": str(tmp_path / "runtimes")}
    with Whole(tmp_path / "data", **nowhere) as whole:
        assert whole.process is not None
        said = whole.said()
        _, ready = whole.ask("GET", "/readyz")
        status, problem = whole.ask("POST", "/estimate", _ESTIMATE, wait=60)
        whole.send(signal.SIGINT)
        assert whole.process.wait(60) == 0

    for path in (tmp_path / "data").glob("logs/*.log"):
        assert path.stat().st_mode & 0o077 == 0, path  # what people ask is in there
    for path in (tmp_path / "data" / "valkey").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    command = "memgate runtimes install torch-2.14"
    assert "no job can be run yet: runtime 'torch-2.14' is not installed" in said
    assert command in said
    assert (ready["status"], ready["code"]) == ("degraded", "RUNTIME_MISSING")
    assert (status, problem["code"], problem["fault"]) == (503, "RUNTIME_MISSING", "operator")
    assert command in problem["detail"]


def test_a_job_outlives_everything_and_ctrl_c_ends_all(tmp_path: Path) -> None:
    """GIVEN a job asked for, WHEN ``memgate up`` is killed, THEN all of it is gone at once.

    AND the next start in the same directory finds the job and answers it, a third start beside it
    is refused, and Ctrl-C ends everything with status 0.
    """
    with Whole(tmp_path) as first:
        status, accepted = first.ask("POST", "/estimate", _ESTIMATE)
        first.send(signal.SIGKILL)
        wait_until(lambda: not first.alive(), 30, "processes were left behind")
    assert status == 202

    with Whole(tmp_path) as second:
        assert second.process is not None
        beside = [*second.command[:-1], "0"]
        refused = subprocess.run(beside, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "is already up in" in refused.stderr
        path = f"/jobs/{accepted['id']}"
        wait_until(
            lambda: second.ask("GET", path, wait=5)[1]["state"] == "done", 180, "never answered"
        )
        second.send(signal.SIGINT)
        assert second.process.wait(60) == 0
        assert not second.alive()
