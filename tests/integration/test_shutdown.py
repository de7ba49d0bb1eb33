"""Programs that are told to stop: they finish, or hand back, what they have begun."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from memgate.contract import JobState, Priority
from memgate.schemas import EstimateCreate
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes
from tests.bench.load import QUESTION, make_answer
from tests.running import Served, answers, post, running, serving, wait_until

needs_runtime = pytest.mark.skipif(
    not read_runtimes()[DEFAULT_RUNTIME].is_installed, reason="no runtime: make runtime"
)


@contextmanager
def _queue(redis_url: str) -> Iterator[QueueClient]:
    queue = QueueClient(QueueSettings(redis_url=redis_url))
    try:
        yield queue
    finally:
        queue.close()


@needs_runtime
def test_a_worker_that_is_told_to_stop_finishes_its_job(redis_url: str, tmp_path: Path) -> None:
    """SIGTERM amid a job: the job is answered, then the worker is gone, and gives its place up."""
    work = EstimateCreate.model_validate_json(QUESTION).work()
    with (
        _queue(redis_url) as queue,
        running("memgate_worker", tmp_path / "worker.log", redis_url=redis_url) as worker,
    ):
        wait_until(lambda: queue.num_workers() == 1, "the worker reports in", 120)
        job = queue.submit(work, Priority.NORMAL)
        wait_until(lambda: queue.read(job.id).state is not JobState.QUEUED, "it is begun")

        worker.terminate()

        assert worker.wait(60) == 0
        assert queue.read(job.id).state is JobState.DONE
        assert queue.num_workers() == 0


class _Waiting(threading.Thread):
    """A client that waits for an answer."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.status = 0
        self.answer = b""

    def run(self) -> None:
        """Ask."""
        self.status, self.answer = post(f"{self._base}/estimate", QUESTION, Prefer="wait=60")


@contextmanager
def _service_with_a_waiting_client(redis_url: str, log: Path) -> Iterator[tuple[Served, _Waiting]]:
    with serving(log, redis_url=redis_url) as served:
        client = _Waiting(served.url)
        client.start()
        yield served, client
        client.join()


def _num_waiting(url: str) -> float:
    """Return how many clients wait, by the service's own count."""
    with urlopen(f"{url}/metrics", timeout=10) as page:
        found = re.search(r"^memgate_waiting_clients (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("answered", [True, False], ids=["in time", "not in time"])
def test_a_service_that_is_told_to_stop_answers_who_waits(
    redis_url: str, tmp_path: Path, answered: bool
) -> None:
    """With the answer if there is one soon, else with where it will be; then it is gone."""
    log = tmp_path / "service.log"
    with (
        _queue(redis_url) as queue,
        _service_with_a_waiting_client(redis_url, log) as (service, client),
    ):
        wait_until(lambda: queue.store.num_open() == 1, "the question is there")
        (job_id,) = queue.store.open_jobs()
        wait_until(lambda: _num_waiting(service.url) == 1, "the client waits")

        service.process.terminate()
        wait_until(lambda: not answers(f"{service.url}/healthz"), "it takes no new requests")
        if answered:
            queue.store.finish(job_id, make_answer().model_dump_json())
        client.join(30)

        assert client.status == (200 if answered else 202)
        said = json.loads(client.answer)
        question = queue.questions.find(said["id"])
        assert question is not None
        assert question.run == job_id
        assert said.get("decision" if answered else "state") == ("admit" if answered else "queued")
        service.process.wait(30)
