"""The queue's primary is lost, with real processes: nothing that was accepted is lost with it.

``make failover`` runs the long test.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from memgate.contract import JobState, NotConfirmedError, Work, WorkKind
from memgate.gpus import GpuRequest
from memgate.jobspec import parse_job_spec
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.client import QueueClient
from memgate_worker.settings import WorkerSettings
from tests.integration.failovers import FAULTS, Failovers
from tests.integration.running import idle_worker
from tests.replicated import Replicated, running_replicated

_JOB = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 2,
}
_ASKED = {"job": _JOB, "gpu": "t4"}
_WORK = Work(kind=WorkKind.ESTIMATE, job=parse_job_spec(_JOB), gpu=GpuRequest(name="t4"))


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    """Start a primary with a replica and Sentinels; each test leaves them whole."""
    with running_replicated(tmp_path_factory.mktemp("replicated")) as made:
        yield made


def test_a_question_counts_once_a_replica_has_it(replicated: Replicated) -> None:
    """GIVEN a primary that is cut off WHEN it takes a question THEN that is not accepted.

    Asked again, it is: by the next primary, which has never heard of it.
    """
    former = replicated.primary()
    queue = QueueClient(WorkerSettings(redis_url=replicated.url))
    try:
        assert queue.num_open() == 0  # it has a connection to the primary by now
        replicated.cut(former)
        former.redis.config_set("min-replicas-to-write", 0)
        with pytest.raises(NotConfirmedError, match="no replica has confirmed it"):
            queue.submit(_WORK)
        assert former.redis.exists(f"memgate:job:{_WORK.id()}")
        replicated.wait_for_failover(former)
        former.redis.config_set("min-replicas-to-write", 1)
        replicated.heal(former)
        replicated.wait_until_whole()

        assert not replicated.primary().redis.exists(f"memgate:job:{_WORK.id()}")
        assert queue.submit(_WORK).state is JobState.QUEUED
    finally:
        queue.close()


def test_a_primary_without_a_replica_takes_nothing(replicated: Replicated) -> None:
    """503, when to come back, and the operator is told; both end when the replica is back."""
    replica = replicated.other(than=replicated.primary())
    app = create_app(ServiceSettings(redis_url=replicated.url))
    with TestClient(app) as client, idle_worker(replicated.url):
        replica.kill()
        replicated.wait_until_alone()
        refused = client.post("/estimate", json=_ASKED)
        unready = client.get("/readyz")
        replica.start()
        replicated.wait_until_whole()
        ready = client.get("/readyz")

    assert (refused.status_code, refused.json()["code"]) == (503, "NOT_CONFIRMED")
    assert (refused.json()["fault"], refused.headers["retry-after"]) == ("passing", "2")
    assert (unready.status_code, unready.json()["code"]) == (503, "REPLICAS_MISSING")
    assert ready.json()["status"] == "ready"


def test_replicas_that_are_not_asked_are_named(replicated: Replicated) -> None:
    """Behind one address nobody said that there are replicas: the probe has seen one."""
    app = create_app(ServiceSettings(redis_url=replicated.primary_url()))
    with TestClient(app) as client, idle_worker(replicated.url):
        said = client.get("/readyz").json()

    assert (said["status"], said["code"]) == ("degraded", "UNCONFIRMED")
    assert "it has 1 replicas that are not asked to confirm it" in said["detail"]


def test_an_address_that_cannot_confirm_is_named(redis_url: str) -> None:
    """GIVEN a server that shows no replicas THEN nothing is accepted until the operator says so."""
    with idle_worker(redis_url):
        with TestClient(create_app(ServiceSettings(redis_url=redis_url, replicas="1"))) as client:
            strict = client.get("/readyz")
            refused = client.post("/estimate", json=_ASKED)
        settings = ServiceSettings(redis_url=redis_url, replicas="unconfirmed")
        with TestClient(create_app(settings)) as client:
            lenient = client.get("/readyz")
            accepted = client.post("/estimate", json=_ASKED)

    assert (strict.status_code, strict.json()["code"]) == (503, "REPLICAS_MISSING")
    assert (refused.status_code, refused.json()["code"]) == (503, "NOT_CONFIRMED")
    assert (lenient.status_code, lenient.json()["code"]) == (200, "UNCONFIRMED")
    assert accepted.status_code == 202


def test_a_primary_that_is_cut_off_and_one_that_dies_lose_nothing(tmp_path: Path) -> None:
    """GIVEN clients that ask all the time THEN what was accepted is answered, each rightly."""
    with Failovers(tmp_path) as failovers:
        failovers.run(["cut", "kill"], load_seconds=0.5)

    assert not failovers.asked.wrong, failovers.line()
    assert len(failovers.asked.accepted) > 10, failovers.line()


@pytest.mark.slow
def test_twenty_kills_with_partitions_between_them_lose_nothing(tmp_path: Path) -> None:
    """GIVEN clients that ask all the time WHEN 20 primaries are killed THEN the same.

    Every other time the next primary is cut off as well, or stops for a while.
    """
    chance = random.Random(1)
    faults = [fault for _ in range(10) for fault in ("kill", chance.choice(FAULTS[1:]), "kill")]
    with Failovers(tmp_path, num_clients=4) as failovers:
        failovers.run(faults, load_seconds=2.0)
    sys.stderr.write(f"\n{failovers.line()}")

    assert not failovers.asked.wrong, failovers.line()
    assert len(failovers.asked.accepted) > 1000, failovers.line()
