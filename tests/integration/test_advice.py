"""A rejection is published at once, and advice is added to it when it is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from memgate.contract import JobRecord, JobState, WorkKind
from memgate.errors import JobFailedError, ProcessLostError
from memgate.report import Estimate
from memgate.units import GIB
from memgate_service.http import waiting
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.history import read_history
from tests.admission import T4, make_estimate, make_pod, make_review
from tests.integration.gates import Gate
from tests.integration.pages import run_of
from tests.integration.queue_place import Place, Stub, answer_alone, make_work

MakePlace = Callable[..., Place]
WORKER = "somebody"
REJECTED = make_estimate(30 * GIB).model_copy(
    update={"timings_ms": {"run": 1, "trace": 2, "replay": 3, "total": 5}}
)
ADVISED = REJECTED.model_copy(update={"largest_batch_size": 12})
ASKED = {
    "job": {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 32, 32]},
        "batch_size": 64,
    },
    "gpu": "t4",
}


@pytest.fixture
def make_place(make_place: MakePlace) -> MakePlace:
    """Make queues for estimates: other answers are never given advice."""
    return partial(make_place, kind=WorkKind.ESTIMATE)


def _is_pending(record: JobRecord, seconds: float = 0.0) -> bool:
    return record.is_advice_pending(datetime.now(UTC) + timedelta(seconds=seconds))


def _stub(advise: Callable[[Estimate], Estimate | None]) -> Stub:
    return Stub(lambda _: REJECTED, advise)


# --- the worker


def test_a_decision_is_there_while_its_advice_is_looked_for(make_place: MakePlace) -> None:
    """GIVEN advice that takes longer than a lease, THEN it is pending all the time, then there."""
    seen: list[tuple[JobState, Any, bool, int, int]] = []

    def advise(said: Estimate) -> Estimate:
        for _ in range(4):
            record = place.read()
            assert record.estimate is not None
            batch = record.estimate.largest_batch_size
            log = len(list(read_history(place.store)))
            seen.append((record.state, batch, _is_pending(record), place.store.num_open(), log))
            time.sleep(0.4)
        return said.model_copy(update={"largest_batch_size": 12})

    place = make_place(_stub(advise), lease_seconds=1)
    place.submit()
    place.work()

    assert seen == [(JobState.DONE, None, True, 0, 1)] * 4
    after = place.read()
    assert (after.state, after.attempts, after.advice_until) == (JobState.DONE, 1, None)
    assert answer_alone(after) == ADVISED
    assert len(list(read_history(place.store))) == 1
    assert place.store.counters()["jobs/estimate:done"] == 1
    assert place.redis.get(f"memgate:lease:{after.id}") is None


@pytest.mark.parametrize(
    "error",
    [JobFailedError("no kernel"), ProcessLostError("killed"), KeyError("ours")],
    ids=["the engine's", "the process", "unknown"],
)
def test_a_search_that_fails_leaves_the_decision(make_place: MakePlace, error: Exception) -> None:
    """Nobody waits for advice any longer, and nothing is tried again."""

    def advise(_: Estimate) -> Estimate:
        raise error

    place = make_place(_stub(advise))
    place.submit()
    place.work()

    record = place.read()
    assert (record.state, record.error, record.advice_until) == (JobState.DONE, None, None)
    assert answer_alone(record) == REJECTED
    assert (len(place.stub.asked), place.stub.num_closed) == (1, 0)


def test_a_search_that_finds_nothing_is_no_longer_pending(make_place: MakePlace) -> None:
    """The answer stays as it was."""
    place = make_place(_stub(lambda _: None))
    place.submit()
    place.work()

    record = place.read()
    assert record.advice_until is None
    assert answer_alone(record) == REJECTED


def test_a_worker_lost_while_it_looks_leaves_nothing_stuck(place: Place) -> None:
    """The job is done, is given to nobody else, and after a lease nobody waits for the rest."""
    job_id = place.submit().id
    assert place.store.begin(job_id, WORKER)
    assert place.store.finish(job_id, REJECTED.model_dump_json(), with_advice_to_come=True)
    place.run_out(job_id)
    place.lose_queue()

    watchdog = place.watchdog()
    rescued = watchdog.sweep(0.0) + watchdog.sweep(1e6)
    place.submit()
    place.work()

    record = place.read()
    assert (record.state, record.attempts, rescued) == (JobState.DONE, 1, 0)
    assert place.stub.asked == []
    assert _is_pending(record)
    assert not _is_pending(record, place.settings.lease_seconds)


def test_advice_is_only_added_to_the_answer_it_was_looked_for(place: Place) -> None:
    """Not before there is one, not to another worker's, and once."""
    job_id = place.submit().id
    assert place.store.begin(job_id, WORKER)
    advised = ADVISED.model_dump_json()

    before = place.store.add_advice(job_id, WORKER, advised)
    assert place.store.finish(job_id, REJECTED.model_dump_json(), with_advice_to_come=True)
    another = place.store.add_advice(job_id, "another", advised)
    first = place.store.add_advice(job_id, WORKER, advised)
    second = place.store.add_advice(job_id, WORKER, REJECTED.model_dump_json())

    assert (before, another, first, second) == (False, False, True, False)
    assert answer_alone(place.read()) == ADVISED


def test_a_search_for_a_forgotten_answer_is_stopped(make_place: MakePlace) -> None:
    """The lease is gone with the job: the worker goes on to the next one, and writes nothing."""

    def advise(_: Estimate) -> Estimate:
        place.redis.delete(f"memgate:job:{make_work(0, WorkKind.ESTIMATE).id()}")
        time.sleep(60)
        return ADVISED

    place = make_place(_stub(advise), lease_seconds=1)
    job_id = place.submit().id
    start = time.monotonic()
    place.work()

    assert time.monotonic() - start < 50
    assert place.stub.num_closed == 1
    assert not place.redis.exists(f"memgate:job:{job_id}")


def test_a_decision_with_advice_to_come_cannot_be_canceled(place: Place) -> None:
    """It is over: the cancel changes nothing, and the advice is still added."""
    job_id = place.submit().id
    assert place.store.begin(job_id, WORKER)
    assert place.store.finish(job_id, REJECTED.model_dump_json(), with_advice_to_come=True)

    canceled = place.client.cancel(job_id)

    assert canceled.state is JobState.DONE
    assert place.store.hold(job_id, WORKER)
    assert place.store.add_advice(job_id, WORKER, ADVISED.model_dump_json())
    assert not place.store.hold(job_id, WORKER)


# --- the service


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Make a service; workers are played by the tests."""
    settings = ServiceSettings(redis_url=redis_url, lease_seconds=60)
    with TestClient(create_app(settings)) as made:
        yield made


def _decide(client: TestClient, batch_size: int = 64) -> str:
    """Ask, and have it rejected with advice to come; return the job's id."""
    job_id: str = client.post("/estimate", json=_asked(batch_size)).json()["id"]
    store = Gate(client).store
    run = run_of(client, job_id)
    assert store.begin(run, WORKER)
    assert store.finish(run, REJECTED.model_dump_json(), with_advice_to_come=True)
    return job_id


def _asked(batch_size: int) -> dict[str, Any]:
    return ASKED | {"job": ASKED["job"] | {"batch_size": batch_size}}  # type: ignore[operator]


def _advise(client: TestClient, job_id: str) -> None:
    run = run_of(client, job_id)
    assert Gate(client).store.add_advice(run, WORKER, ADVISED.model_dump_json())


@contextmanager
def _soon(act: Callable[[], None], seconds: float = 0.3) -> Iterator[None]:
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_decision_is_not_remembered_without_its_advice(client: TestClient) -> None:
    """The answer says that more is to come, comes at once, and is looked up anew until then."""
    job_id = _decide(client)
    start = time.monotonic()
    before = [client.post("/estimate", json=ASKED, headers={"Prefer": "wait=30"}) for _ in range(2)]
    assert time.monotonic() - start < 10
    _advise(client, job_id)
    after = [client.post("/estimate", json=ASKED) for _ in range(2)]

    for answer in before:
        assert answer.json()["decision"] == "reject"
        assert answer.headers["x-memgate-advice"] == "pending"
    assert [answer.json()["largest_batch_size"] for answer in after] == [12, 12]
    assert all("x-memgate-advice" not in answer.headers for answer in after)
    caches = [answer.headers["x-memgate-cache"] for answer in before + after]
    assert caches == ["store", "store", "store", "memory"]


@pytest.mark.parametrize("is_heard", [True, False], ids=["told", "looks for itself"])
def test_whoever_waits_for_a_job_waits_for_its_advice(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    """Also if the message that it is there was lost."""
    if not is_heard:
        monkeypatch.setattr(waiting.Waiters, "notify", lambda *_: None)
    job_id = _decide(client)

    with _soon(lambda: _advise(client, job_id)):
        start = time.monotonic()
        answer = client.get(f"/jobs/{job_id}", headers={"Prefer": "wait=30"})
        took = time.monotonic() - start

    assert answer.json()["result"]["largest_batch_size"] == 12
    assert 0.2 < took < 15
    assert "x-memgate-advice" not in answer.headers


def test_waiting_for_advice_ends_with_the_time(client: TestClient) -> None:
    """The decision is there, and that more is to come."""
    job_id = _decide(client)
    answer = client.get(f"/jobs/{job_id}", headers={"Prefer": "wait=1"})

    assert answer.json()["result"]["decision"] == "reject"
    assert answer.headers["x-memgate-advice"] == "pending"


def test_nobody_waits_for_a_worker_that_was_lost(redis_url: str) -> None:
    """After a lease the answer is as good as it gets, and is remembered."""
    settings = ServiceSettings(redis_url=redis_url, lease_seconds=1)
    with TestClient(create_app(settings)) as client:
        job_id = _decide(client)
        start = time.monotonic()
        answer = client.get(f"/jobs/{job_id}", headers={"Prefer": "wait=50"})
        took = time.monotonic() - start
        answers = [client.post("/estimate", json=ASKED) for _ in range(2)]

    assert "x-memgate-advice" not in answer.headers
    assert 0.5 < took < 20
    assert answers[1].headers["x-memgate-cache"] == "memory"


def test_a_page_shows_the_batch_when_it_is_found(client: TestClient) -> None:
    """It says that somebody looks, and asks until there is something."""
    job_id = _decide(client)
    page = client.get(f"/ui/jobs/{job_id}").text
    pending = client.get(f"/ui/jobs/{job_id}/advice").json()
    run = run_of(client, job_id)
    assert Gate(client).store.add_advice(run, WORKER, ADVISED.model_dump_json())
    known = client.get(f"/ui/jobs/{job_id}/advice").json()

    assert 'data-pending="yes"' in page
    assert "looking for a batch that fits" in page
    assert pending["is_advice_pending"]
    assert not known["is_advice_pending"]
    assert "batch size 12 fits, the largest that does" in known["html"]["explanation"]
    assert "data-pending" not in client.get(f"/ui/jobs/{job_id}").text


# --- the gate


def _work_for(gate: Gate, *, advise_after: float | None) -> threading.Thread:
    """Play a worker that rejects what is asked at once, and advises later."""

    def work() -> None:
        store = gate.store
        while not (jobs := store.open_jobs()):
            time.sleep(0.02)
        for job_id in jobs:
            assert store.begin(job_id, WORKER)
            assert store.finish(job_id, REJECTED.model_dump_json(), with_advice_to_come=True)
        if advise_after is not None:
            time.sleep(advise_after)
            assert store.add_advice(job_id, WORKER, ADVISED.model_dump_json())

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_gate_with_two_seconds_refuses_at_first_sight(make_gate: Callable[..., Gate]) -> None:
    """The decision is enough: the largest batch is left out, and not asked for a second time."""
    gate = make_gate(admission_wait_seconds=2, lease_seconds=60)
    review = make_review(make_pod(nodeSelector=T4))
    worker = _work_for(gate, advise_after=None)

    start = time.monotonic()
    response = gate.ask("validate", review, timeout="2s")
    took = time.monotonic() - start
    worker.join()

    assert not response["allowed"]
    assert "does not fit on t4: needs 31.04 GiB" in response["status"]["message"]
    assert "the largest" not in response["status"]["message"]
    assert took < 2
    assert gate.asked() == ["estimate"]


def test_a_refusal_tells_a_batch_that_is_found_in_time(make_gate: Callable[..., Gate]) -> None:
    """What is left of the gate's time is for that; whoever comes later finds it at once."""
    gate = make_gate(admission_wait_seconds=20, lease_seconds=60)
    review = make_review(make_pod(nodeSelector=T4))
    worker = _work_for(gate, advise_after=0.5)

    messages = [gate.ask("validate", review)["status"]["message"] for _ in range(2)]
    worker.join()

    assert all("batch size 12 fits, the largest that does" in message for message in messages)
    assert gate.asked() == ["estimate"]


def test_a_dry_run_does_not_wait_for_advice(make_gate: Callable[..., Gate]) -> None:
    """It tells what is known."""
    gate = make_gate(admission_wait_seconds=20, lease_seconds=60)
    review = make_review(make_pod(nodeSelector=T4))
    worker = _work_for(gate, advise_after=None)
    gate.ask("mutate", review)
    worker.join()

    start = time.monotonic()
    dry = make_review(make_pod(nodeSelector=T4), dryRun=True)
    response = gate.ask("validate", dry)

    assert not response["allowed"]
    assert time.monotonic() - start < 10
