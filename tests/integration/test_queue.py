"""Questions through the queue, on a real Valkey: asked once or often, answered once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

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
    InputError,
    JobFailedError,
    ProcessLostError,
    RuntimeMissingError,
    UnsupportedJobError,
)
from memgate.gpus import GpuRequest
from memgate.jobspec import parse_job_spec
from memgate.report import Fit
from memgate.units import MIB
from memgate_worker.answers import EngineAnswerer
from memgate_worker.queue import queues
from memgate_worker.queue.client import Listener
from memgate_worker.queue.history import read_history
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


def _job(name: str = "squeezenet1_1", *, iterations: int = 1) -> Work:
    document = {
        "model": {"source": "torchvision", "name": name},
        "input": {"shape": [3, 64, 64]},
        "batch_size": 1,
        "iterations": iterations,
    }
    return Work(
        kind=WorkKind.ESTIMATE, job=parse_job_spec(document), gpu=GpuRequest(name="a100-40")
    )


def test_a_job_goes_through_the_queue_to_a_result(make_place: MakePlace) -> None:
    """Asked, queued, worked on, answered; times and attempts are noted."""
    place = make_place(Stub(lambda _: "t4"))

    before = place.submit()
    place.work()
    after = place.read()

    assert (before.state, before.attempts, before.result) == (JobState.QUEUED, 0, None)
    assert (after.state, after.attempts) == (JobState.DONE, 1)
    assert answer_alone(after) == Fit(gpus=[], smallest="t4")
    assert after.started_at is not None
    assert after.finished_at is not None
    assert before.created_at <= after.started_at <= after.finished_at
    assert place.store.num_open() == 0


def test_the_engine_answers_through_the_queue(place: Place) -> None:
    """The phantom for real; the same run on another GPU is fast work, and is not run again."""
    place.announce()
    with EngineAnswerer(
        JobStore(place.worker.connection, place.settings), place.settings
    ) as answerer:
        use_job_runner(JobRunner(place.store, place.settings, answerer))
        first = place.client.submit(_job())
        place.work()
        other = _job().model_copy(update={"gpu": GpuRequest(name="a100-80")})
        second = place.client.submit(other)
        depths = place.client.depths()
        place.work()

    answers = [place.client.read(record.id).estimate for record in (first, second)]
    assert all(answer is not None and answer.decision is Decision.ADMIT for answer in answers)
    assert depths["memgate-fast-normal"] == 1
    assert place.store.counters()["timelines/yes"] == 1
    assert place.store.load_view(first.id) is not None


def _work_with_engines(place: Place) -> None:
    with EngineAnswerer(
        JobStore(place.worker.connection, place.settings), place.settings
    ) as answerer:
        use_job_runner(JobRunner(place.store, place.settings, answerer))
        place.work()


def test_a_runtime_that_was_installed_meanwhile_answers(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing one is the operator's fault, and nobody is told of it for a week."""
    with monkeypatch.context() as without:
        without.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path))
        job_id = place.client.submit(_job()).id
        _work_with_engines(place)
    failed = place.client.read(job_id).error

    place.client.submit(_job())
    _work_with_engines(place)

    assert failed is not None
    assert (failed.code, failed.fault) == ("RUNTIME_MISSING", Fault.OPERATOR)
    assert "memgate runtimes install torch-2.14" in failed.message
    assert place.store.counters()["jobs/estimate:operator"] == 1
    assert place.client.read(job_id).state is JobState.DONE


def test_a_job_over_our_memory_limit_is_not_run_again(make_place: MakePlace) -> None:
    """Our limit, named with what raises it: neither the job's fault nor worth another try."""
    place = make_place(job_memory_bytes=256 * MIB)
    place.announce()
    takes_a_while = _job("densenet201", iterations=20)  # limits are looked at every 0.1 s
    job_id = place.client.submit(takes_a_while).id
    _work_with_engines(place)
    place.announce()  # a worker does so all the time; the run may have taken longer than it holds

    again = place.client.submit(takes_a_while)

    assert again.error is not None
    assert (again.error.code, again.error.fault) == ("HOST_MEMORY_EXCEEDED", Fault.UNSUPPORTED)
    assert "256.00 MiB" in again.error.message
    assert "MEMGATE_JOB_MEMORY_BYTES" in again.error.message
    assert (again.id, again.state, again.attempts) == (job_id, JobState.FAILED, 1)


def test_the_same_question_joins_the_one_that_is_open(place: Place) -> None:
    """One job, one run, however often it is asked."""
    ids = {place.submit().id for _ in range(3)}
    place.work()

    assert len(ids) == 1
    assert len(place.stub.asked) == 1


def test_a_question_that_was_answered_is_not_run_again(place: Place) -> None:
    """The store answers."""
    place.submit()
    place.work()

    again = place.submit()
    place.work()

    assert again.state is JobState.DONE
    assert len(place.stub.asked) == 1


def test_a_failure_of_the_callers_is_remembered(make_place: MakePlace) -> None:
    """Asking again without a change is of no use."""
    place = make_place(_raise(InputError("batch_size is 0")))
    place.submit()
    place.work()

    again = place.submit()
    place.work()

    assert again.state is JobState.FAILED
    assert again.error == Failure(code="BAD_INPUT", message="batch_size is 0", fault=Fault.CALLER)
    assert len(place.stub.asked) == 1


@pytest.mark.parametrize(
    ("error", "want_code"),
    [(RuntimeMissingError("no torch"), "RUNTIME_MISSING"), (KeyError("ours"), "INTERNAL")],
    ids=["the operator's", "unknown"],
)
def test_another_failure_is_begun_anew(
    make_place: MakePlace, error: Exception, want_code: str
) -> None:
    """What failed through no fault of the caller's may do better the next time."""
    place = make_place(_raise(error))
    place.submit()
    place.work()
    failed = place.read()

    again = place.submit()
    place.work()

    assert failed.error is not None
    assert failed.error.code == want_code
    assert (again.state, again.error, again.attempts) == (JobState.QUEUED, None, 0)
    assert len(place.stub.asked) == 2


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (InputError("x"), "caller"),
        (JobFailedError("x"), "job"),
        (UnsupportedJobError("x"), "unsupported"),
        (RuntimeMissingError("x"), "operator"),
        (ProcessLostError("x"), "passing"),
        (KeyError("x"), "passing"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_job_without_an_answer_is_counted_by_fault(
    make_place: MakePlace, error: Exception, want: str
) -> None:
    """In the metrics, by the minute and in the log; a missing runtime is not the caller's."""
    place = make_place(_raise(error), max_attempts=1)
    place.submit()
    place.work()

    counters = place.store.counters()
    (decision,) = read_history(place.store)
    assert [name for name in counters if name.startswith("jobs/")] == [f"jobs/fit:{want}"]
    assert decision.outcome == want
    record = place.read()
    assert record.error is not None
    assert record.error.fault == want


def test_a_question_beyond_the_limit_of_the_queue_is_over_our_limit(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a bug of ours, and not tried again: it names the limit, and what ran is ended."""
    monkeypatch.setattr(queues, "TASK_TIMEOUT_SECONDS", 1)
    place = make_place(Stub(lambda _: time.sleep(60)))
    place.submit()
    place.work()

    record = place.read()
    assert record.error is not None
    assert (record.error.code, record.error.fault) == ("TIME_LIMIT_EXCEEDED", Fault.UNSUPPORTED)
    assert "longer than 24 hours, the queue's limit" in record.error.message
    assert (record.attempts, place.stub.num_closed) == (1, 1)


def test_a_lost_process_is_tried_again_until_it_is_enough(make_place: MakePlace) -> None:
    """Not for ever; an engine whose host was lost starts it again by itself."""
    place = make_place(_raise(ProcessLostError("killed")), max_attempts=3)
    place.submit()

    place.work()

    record = place.read()
    assert record.error is not None
    assert (record.error.code, record.attempts) == ("PROCESS_LOST", 3)
    assert place.stub.num_closed == 0


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
    assert [one.id for one in place.client.list(offset=0, count=9)] == [other_id]
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

    known = [record.work for record in place.client.list(offset=0, count=10)]
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
