"""Questions asked while the queue's primary is lost again and again, and what came of each."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from memgate_worker.queue.connecting import connect
from tests.integration.stub_worker import peak_for
from tests.replicated import Node, Replicated, running_replicated
from tests.running import ask, running, serving, wait_until

#: what befalls a primary: it dies; it is parted from its replica and the Sentinels, but not from
#: its clients; it stops and goes on later, believing that it still is the primary
FAULTS = ("kill", "cut", "stop")

#: of a client between two questions
_PAUSE_SECONDS = 0.02

#: nothing that was accepted may take longer, once all is whole again: a lease has to run out
_ANSWER_SECONDS = 120.0

#: a key that only a former primary has
_STRAY = "memgate:config:stray"


@dataclass(slots=True)
class Asked:
    """What clients were told."""

    #: batch sizes by the id of the job that was accepted
    accepted: dict[str, int] = field(default_factory=dict)
    #: refusals by code; "" where there was no answer
    refused: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Failovers:
    """A replicated queue with a service, workers and clients. A context manager."""

    def __init__(self, home: Path, num_clients: int = 2, num_workers: int = 2) -> None:
        self._home = home
        self._num_clients, self._num_workers = num_clients, num_workers
        self._stack = ExitStack()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._batch_sizes = itertools.count(1)
        self.asked = Asked()
        self.queue: Replicated
        self._url = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.queue = stack.enter_context(running_replicated(self._home))
            shared: dict[str, Any] = {"redis_url": self.queue.url, "lease_seconds": "2"}
            for number in range(self._num_workers):
                log = self._home / f"worker-{number}.log"
                stack.enter_context(running("tests.integration.stub_worker", log, **shared))
            served = stack.enter_context(serving(self._home / "service.log", **shared))
            self._url = served.url
            wait_until(lambda: ask(f"{self._url}/readyz", "GET")[0] == 200, "it is ready", 60)
            stack.callback(self._stopped.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, faults: list[str], load_seconds: float) -> None:
        """Have the primary fail in these ways while clients ask, then let all come to its end."""
        clients = [threading.Thread(target=self._keep_asking) for _ in range(self._num_clients)]
        for client in clients:
            client.start()
        try:
            for fault in faults:
                before = len(self.asked.accepted)
                # under load: some questions are accepted before each fault
                wait_until(lambda n=before: len(self.asked.accepted) > n, "accepted", 60)  # type: ignore[misc]
                self._stopped.wait(load_seconds)
                self._fail(fault)
        finally:
            self._stopped.set()
            for client in clients:
                client.join()
        self._check()

    def _fail(self, fault: str) -> None:
        former = self.queue.primary()
        if fault == "kill":
            former.kill()
        elif fault == "cut":
            self.queue.cut(former)
        else:
            former.send(signal.SIGSTOP)
        self.queue.wait_for_failover(former)
        self._come_back(fault, former)
        self.queue.wait_until_whole()
        with connect(self.queue.url) as redis:
            if redis.exists(_STRAY):
                self.asked.wrong.append(f"{fault}: a former primary brought back what it had alone")

    def _come_back(self, fault: str, former: Node) -> None:
        """Have a former primary come back with something that it alone has."""
        if fault == "kill":
            former.start()
        elif fault == "cut":
            former.redis.config_set("min-replicas-to-write", 0)
            former.redis.set(_STRAY, "1", ex=3600)
            former.redis.config_set("min-replicas-to-write", 1)
            self.queue.heal(former)
        else:
            former.send(signal.SIGCONT)

    def _keep_asking(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS):
            with self._lock:
                batch_size = next(self._batch_sizes)
            self._ask_until_accepted(batch_size)

    def _ask_until_accepted(self, batch_size: int) -> None:
        """Ask; after a refusal ask again: nobody may be told of an error that is not passing."""
        while not self._stopped.is_set():
            status, body = ask(f"{self._url}/estimate", "POST", _question(batch_size))
            with self._lock:
                if status in (200, 202):
                    if status == 202:
                        self.asked.accepted[body["id"]] = batch_size
                    return
                code = body["code"] if isinstance(body, dict) else ""
                self.asked.refused[code] = self.asked.refused.get(code, 0) + 1
                if status not in (0, 503):
                    self.asked.wrong.append(f"{status} {body}")
            self._stopped.wait(0.1)

    def _check(self) -> None:
        """See to it that each question that was accepted has its answer."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        for job_id, batch_size in self.asked.accepted.items():
            status, record = self._read(job_id)
            while time.monotonic() < deadline and not _is_over(status, record):
                status, record = self._read(job_id)
            result = record.get("result") if isinstance(record, dict) else None
            if status != 200 or not result or result["peak_bytes"] != peak_for(batch_size):
                self.asked.wrong.append(f"{job_id} (batch size {batch_size}): {status} {record}")

    def _read(self, job_id: str) -> tuple[int, Any]:
        return ask(f"{self._url}/jobs/{job_id}", "GET", wait=2)

    def line(self) -> str:
        """Say in one line what happened."""
        refused = " ".join(f"{code or 'none'}={n}" for code, n in self.asked.refused.items())
        return (
            f"{len(self.asked.accepted)} questions accepted, refused: {refused or 'none'},"
            f" wrong: {self.asked.wrong or 'none'}"
        )


def _is_over(status: int, record: Any) -> bool:
    return status == 404 or (status == 200 and record["state"] not in ("queued", "running"))


def _question(batch_size: int) -> dict[str, Any]:
    model = {"source": "torchvision", "name": "resnet18"}
    job = {"model": model, "input": {"shape": [3, 32, 32]}, "batch_size": batch_size}
    return {"job": job, "gpu": "t4"}
