"""Questions through the queue, on a real Valkey: asked once or often, answered once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memgate.contract import (
    Failure,
    JobState,
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
from memgate_worker.queue.history import read_history
from memgate_worker.queue.store import JobStore
from memgate_worker.tasks import JobRunner, use_job_runner
from tests.integration.queue_place import Place, Stub, answer_alone

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
