"""Programs that stop for a while, and clocks that jump: all of it recovers by itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from tests.clocks import Clock
from tests.integration.stub_worker import peak_for
from tests.running import ask, running, serving, wait_until
from tests.valkey import running_server

#: a worker reports in four times in the 40 s for which it is remembered
_RECOVERY_SECONDS = 30.0

#: what probes allow
_PROBE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A Valkey, a worker whose answers are made up, and a service."""

    url: str
    store: psutil.Process
    worker: psutil.Process

    def ready(self) -> tuple[int, Any]:
        """Ask whether all is well."""
        return ask(f"{self.url}/readyz", "GET")

    def submit(self, batch_size: int) -> str:
        """Ask a question; return the id of its job."""
        model = {"source": "torchvision", "name": "resnet18"}
        job = {"model": model, "input": {"shape": [3, 32, 32]}, "batch_size": batch_size}
        status, body = ask(f"{self.url}/estimate", "POST", {"job": job, "gpu": "t4"})
        assert status == 202, body
        return str(body["id"])

    def peak(self, job_id: str) -> int | None:
        """Return the peak that a job was answered with, if it was."""
        status, record = ask(f"{self.url}/jobs/{job_id}", "GET")
        assert status == 200, record
        return record["result"] and int(record["result"]["peak_bytes"])


@contextmanager
def _running(home: Path, environment: Mapping[str, str] | None = None) -> Iterator[Programs]:
    with ExitStack() as stack:
        with patch.dict(os.environ, environment or {}):
            url, store = stack.enter_context(running_server())
            work = running("tests.integration.stub_worker", home / "worker.log", redis_url=url)
            worker = stack.enter_context(work)
            served = stack.enter_context(serving(home / "service.log", redis_url=url))
        programs = Programs(
            url=served.url, store=psutil.Process(store), worker=psutil.Process(worker.pid)
        )
        wait_until(lambda: programs.ready()[0] == 200, "it is ready", 60)
        yield programs


@contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("days", [8, 1, -1])
def test_a_clock_that_jumps_is_no_outage(tmp_path: Path, days: int) -> None:
    """GIVEN a job that waits WHEN all clocks jump THEN it is answered, and all is ready again.

    Eight days are more than answers are kept for.
    """
    clock = Clock(tmp_path)
    with _running(tmp_path, clock.environment) as programs:
        with _stopped(programs.worker):
            job_id = programs.submit(7)
            clock.move(days)
            programs.ready()
        wait_until(lambda: programs.ready()[0] == 200, "ready again", _RECOVERY_SECONDS)
        wait_until(lambda: programs.peak(job_id) == peak_for(7), "answered", _RECOVERY_SECONDS)
        clock.move(0)
        wait_until(lambda: programs.ready()[0] == 200, "ready once more", _RECOVERY_SECONDS)
        late = programs.submit(8)
        wait_until(lambda: programs.peak(late) == peak_for(8), "answered", _RECOVERY_SECONDS)


def test_readiness_is_told_in_time_whatever_hangs(tmp_path: Path) -> None:
    """GIVEN a Valkey that is frozen and more requests than there are threads WHEN asked THEN 503.

    And 200 soon after it goes on.
    """
    with _running(tmp_path) as programs, _stopped(programs.store):
        hanging = [
            threading.Thread(target=ask, args=(f"{programs.url}/jobs", "GET")) for _ in range(60)
        ]
        for one in hanging:
            one.start()
        times = []
        for _ in range(5):
            start = time.monotonic()
            status, body = programs.ready()
            times.append(time.monotonic() - start)
            assert (status, body["code"]) == (503, "QUEUE_UNREACHABLE")
        programs.store.send_signal(signal.SIGCONT)
        for one in hanging:
            one.join()
        wait_until(lambda: programs.ready()[0] == 200, "ready again", _RECOVERY_SECONDS)

    assert max(times) < _PROBE_SECONDS, times


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seconds"), [("worker", 46), ("store", 161)])
def test_a_long_pause_is_no_outage(tmp_path: Path, name: str, seconds: float) -> None:
    """GIVEN a program that stops for longer than it is remembered WHEN it goes on THEN ready."""
    with _running(tmp_path) as programs:
        with _stopped(getattr(programs, name)):
            threading.Event().wait(seconds)  # its absence is what is tested
        wait_until(lambda: programs.ready()[0] == 200, "ready again", _RECOVERY_SECONDS)
        job_id = programs.submit(9)
        wait_until(lambda: programs.peak(job_id) == peak_for(9), "answered", _RECOVERY_SECONDS)
