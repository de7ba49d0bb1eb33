"""The queue on a real Valkey: what is canceled, what comes first, and what has an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from memgate.contract import (
    Failure,
    JobState,
    Priority,
    QueueFullError,
    UnknownJobError,
    Work,
    WorkKind,
)
from memgate.decision import Decision
from memgate.errors import (
    Fault,
    JobFailedError,
)
from memgate.gpus import GpuRequest
from memgate.report import Fit
from memgate_worker.answers import EngineAnswerer
from memgate_worker.queue.client import Listener
from memgate_worker.queue.queues import Speed, enqueue
from memgate_worker.queue.store import JobStore
from memgate_worker.tasks import JobRunner, use_job_runner
from tests.conftest import DATA
from tests.integration.queue_place import Place, Stub, answer_alone, make_work

TRACE = DATA / "traces" / "tiny-torch-2.14.json.gz"

MakePlace = Callable[..., Place]


def _raise(error: BaseException) -> Stub:
    def answer(_: Work) -> str:
        raise error

    return Stub(answer)


def _work_with_engines(place: Place) -> None:
    with EngineAnswerer(
        JobStore(place.worker.connection, place.settings), place.settings
    ) as answerer:
        use_job_runner(JobRunner(place.store, place.settings, answerer))
        place.work()


def test_a_canceled_job_is_not_run(place: Place) -> None:
    """It waits in the queue still, and nobody begins it."""
    job_id = place.submit().id

    canceled = place.client.cancel(job_id)
    place.work()

    assert canceled.state is JobState.CANCELED
    assert place.read().state is JobState.CANCELED
    assert place.stub.asked == []


def test_a_canceled_job_may_be_asked_for_again(place: Place) -> None:
    """Even while somebody is still at the canceled one: the lease is not in the way."""
    job_id = place.submit().id
    assert place.store.begin(job_id, "slow to hear")
    place.client.cancel(job_id)

    again = place.submit()
    place.work()

    assert again.state is JobState.QUEUED
    assert place.read().state is JobState.DONE
    assert not place.store.hold(job_id, "slow to hear")


def test_a_job_that_is_over_cannot_be_canceled(place: Place) -> None:
    """It stays as it is."""
    job_id = place.submit().id
    place.work()

    assert place.client.cancel(job_id).state is JobState.DONE


def test_canceling_stops_a_job_that_runs(make_place: MakePlace) -> None:
    """The lease's thread hears of it and interrupts; the worker goes on to the next job."""
    began = threading.Event()

    def answer(work: Work) -> str:
        if work == make_work(0):
            began.set()
            time.sleep(60)
        return "t4"

    place = make_place(Stub(answer), lease_seconds=1)
    job_id = place.submit(0).id
    place.submit(1)

    def cancel() -> None:
        began.wait(30)
        place.client.cancel(job_id)

    thread = threading.Thread(target=cancel)
    thread.start()
    start = time.monotonic()
    place.work()
    thread.join()

    assert time.monotonic() - start < 50
    assert place.read(0).state is JobState.CANCELED
    assert place.read(1).state is JobState.DONE
    assert place.stub.num_closed == 1


def test_the_first_answer_counts(place: Place) -> None:
    """What was said once is not taken back: not by another answer, a failure or a cancel."""
    job_id = place.submit().id
    error = Failure(code="X", message="", fault=Fault.PASSING)

    ends = [
        place.store.finish(job_id, '{"gpus": [], "smallest": "t4"}'),
        place.store.finish(job_id, '{"gpus": [], "smallest": "l4"}'),
        place.store.fail(job_id, error),
        place.store.cancel(job_id),
    ]

    assert ends == [True, False, False, False]
    assert answer_alone(place.read()) == Fit(gpus=[], smallest="t4")


def test_a_result_of_another_layout_is_absent(make_place: MakePlace) -> None:
    """GIVEN what another version stored, THEN there is no such job; asking works it out anew."""
    place = make_place(Stub(lambda _: "t4"))
    job_id, other_id = place.submit().id, place.submit(1).id
    place.work()
    place.redis.hset(f"memgate:job:{job_id}", "result", '{"smallest_gpu": "t4"}')

    with pytest.raises(UnknownJobError):
        place.read()
    known = place.store.read_many(place.store.newest(0, 9))
    assert [one.id for one in known] == [other_id]
    again = place.submit()
    place.work()

    assert (again.id, again.state) == (job_id, JobState.QUEUED)
    assert answer_alone(place.read()) == Fit(gpus=[], smallest="t4")


def test_higher_priorities_come_first(place: Place) -> None:
    """High before normal before low, whoever came first."""
    for number, priority in enumerate(reversed(Priority)):
        place.submit(number, priority)

    place.work()

    assert place.stub.asked == [make_work(2), make_work(1), make_work(0)]


def test_fast_work_comes_before_slow_work(place: Place) -> None:
    """Even if the slow one has the higher priority: it would keep the fast one waiting for long."""
    place.submit(0, Priority.HIGH)
    fast = make_work(1)
    assert place.store.create(fast.id(), fast, Priority.LOW)
    enqueue(place.redis, fast.id(), Speed.FAST, Priority.LOW)

    place.work()

    assert place.stub.asked == [fast, make_work(0)]


def test_a_worker_may_be_for_fast_work_only(make_place: MakePlace) -> None:
    """It leaves the rest alone."""
    place = make_place(queues="fast")
    place.submit()

    place.work()

    assert place.read().state is JobState.QUEUED


def test_a_full_queue_refuses_what_is_new_and_joins_what_is_known(make_place: MakePlace) -> None:
    """The bound is on open jobs, and room is made as they end."""
    place = make_place(max_queued=2)
    place.submit(0)
    place.submit(1)

    with pytest.raises(QueueFullError, match="2 jobs are waiting"):
        place.submit(2)
    assert place.submit(1).state is JobState.QUEUED

    place.work()
    assert place.submit(2).state is JobState.QUEUED


def test_the_index_of_jobs_is_bounded(make_place: MakePlace) -> None:
    """The oldest that are over are forgotten; an open one never."""
    place = make_place(max_jobs=3)
    place.submit(0)
    assert place.store.begin(make_work(0).id(), "somebody")
    for number in range(1, 8):
        place.submit(number)
        place.work()

    known = [record.work for record in place.store.read_many(place.store.newest(0, 10))]
    assert known == [make_work(7), make_work(6), make_work(0)]
    with pytest.raises(UnknownJobError):
        place.read(1)


def test_expired_jobs_leave_the_index(place: Place) -> None:
    """Else pages of the newest would have holes."""
    gone = place.submit(0).id
    place.redis.delete(f"memgate:job:{gone}")

    place.submit(1)

    assert place.store.num_jobs() == 1


def test_the_cache_of_timelines_is_bounded(make_place: MakePlace) -> None:
    """In bytes; what was not used for longest goes, views included."""
    place = make_place(max_timelines_bytes=1000)
    for name in ("a", "b", "c"):
        place.store.save_timeline(name, b"x" * 300)
    assert place.store.load_timeline("a") is not None

    place.store.save_timeline("d", b"x" * 300)
    place.store.save_timeline("d", b"x" * 300)

    assert [name for name in "abcd" if place.store.has_timeline(name)] == ["a", "c", "d"]
    assert place.store.load_timeline("b") is None
    assert int(place.redis.get("memgate:timelines:total")) == 900

    place.store.save_timeline("large", b"x" * 2000)
    assert int(place.redis.get("memgate:timelines:total")) == 0
    place.store.save_view("job", "{}")
    assert place.store.load_view("job") == b"{}"


def test_a_timeline_that_expired_is_no_longer_counted(place: Place) -> None:
    """The sum is of what is there."""
    place.store.save_timeline("a", b"xyz")
    place.redis.delete("memgate:timeline:a")

    assert place.store.load_timeline("a") is None
    assert int(place.redis.get("memgate:timelines:total")) == 0


def test_a_trace_that_kills_its_process_fails_its_job_once(place: Place) -> None:
    """The caller's fault: remembered and not tried again; the worker goes on."""
    place.announce()
    lists = b",".join([b"[]"] * 10_000_000)
    bomb = b'{"traceEvents":[],"memgate":{"a":[' + lists + b"]}}"
    works = [
        Work(
            kind=WorkKind.ESTIMATE,
            trace=place.store.save_trace(trace),
            gpu=GpuRequest(name="rtx-3060"),
        )
        for trace in (bomb, TRACE.read_bytes())
    ]
    ids = [place.client.submit(work).id for work in works]
    _work_with_engines(place)
    again = place.client.submit(works[0])
    _work_with_engines(place)

    failed, answered = map(place.client.read, ids)
    assert failed.error is not None
    assert (failed.error.code, failed.error.fault) == ("UPLOAD_LIMIT_EXCEEDED", Fault.CALLER)
    assert (again.state, failed.attempts) == (JobState.FAILED, 1)
    assert answered.estimate is not None
    assert answered.estimate.decision is Decision.ADMIT
    assert place.store.load_view(answered.id) is not None


def test_traces_expire(make_place: MakePlace) -> None:
    """They are large, and of use until they are read."""
    place = make_place(trace_ttl_seconds=60)

    name = place.store.save_trace(b"trace")

    assert place.store.load_trace(name) == b"trace"
    assert 0 < place.redis.ttl(f"memgate:trace:{name}") <= 60


def test_every_key_expires_or_is_an_index(make_place: MakePlace) -> None:
    """Nothing is left behind for ever."""
    place = make_place(_raise(JobFailedError("no")))
    place.submit(0)
    place.work()
    place.client.cancel(place.submit(1).id)
    place.store.save_trace(b"trace")
    place.store.save_view("job", "{}")
    assert place.redis.ttl(f"memgate:job:{place.submit(2).id}") < 0, "as long as it is open"
    place.work()

    lasting = {key.decode() for key in place.redis.keys("memgate:*") if place.redis.ttl(key) < 0}

    assert lasting <= {
        *("memgate:jobs", "memgate:open", "memgate:counters"),
        *("memgate:timelines", "memgate:timelines:sizes", "memgate:timelines:total"),
    }


def test_whoever_listens_hears_that_a_job_is_over(place: Place) -> None:
    """Also after the connection was lost in between."""
    heard: set[str] = set()
    listener = Listener(place.settings, heard.add)
    listener.start()
    try:
        for number in range(2):
            job_id = place.submit(number).id
            deadline = time.monotonic() + 30
            while not place.redis.pubsub_numsub("memgate:finished")[0][1]:
                assert time.monotonic() < deadline, "nobody listens"
                time.sleep(0.05)
            place.work()
            while job_id not in heard:
                assert time.monotonic() < deadline, "not heard"
                time.sleep(0.05)
            place.redis.client_kill_filter(_type="pubsub")
    finally:
        listener.stop()
