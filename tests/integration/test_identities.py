"""What is stored counts only if what is there now made it; on a real Valkey."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from memgate.contract import JobRecord, JobState, UnknownJobError, Work, WorkKind
from memgate.errors import (
    HostMemoryError,
    InputError,
    JobFailedError,
    MemgateError,
    NotModelledError,
    TimeLimitError,
)
from memgate.gpus import GpuRequest
from memgate.jobspec import parse_job_spec
from memgate.units import GIB
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.answers import EngineAnswerer
from memgate_worker.engines import identity
from memgate_worker.limits import RunLimits
from memgate_worker.main import make_announcement
from memgate_worker.queue import client as queue_client
from memgate_worker.queue.announcements import Announcement
from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.queue_place import Place, Stub, make_work
from tests.running import wait_until

MakePlace = Callable[..., Place]

needs_runtime = pytest.mark.skipif(
    not read_runtimes()["torch-2.14"].is_installed, reason="runtime torch-2.14 is not built"
)


@pytest.fixture(autouse=True)
def _announcements_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_client, "_SERVING_SECONDS", 0.0)


def _job(batch_size: int = 1, gpu: str = "a100-40", **fields: Any) -> Work:
    document = {
        "model": {"source": "torchvision", "name": "squeezenet1_1"},
        "input": {"shape": [3, 64, 64]},
        "batch_size": batch_size,
        "iterations": 1,
    }
    job = parse_job_spec(document | fields)
    return Work(kind=WorkKind.ESTIMATE, job=job, gpu=GpuRequest(name=gpu))


def _fit() -> Work:
    """Ask what stubs answer."""
    return Work(kind=WorkKind.FIT, job=_job().job)


def _ask(place: Place, work: Work) -> JobRecord:
    """Ask, have everything worked on that is queued, and return what was there at first."""
    record = place.client.submit(work)
    place.work()
    return record


def _other(announcement: Announcement, **change: Any) -> Announcement:
    """Announce the same under another identity."""
    engines = tuple(replace(engine, **change) for engine in announcement.engines)
    return replace(announcement, engines=engines)


def _raising(error: MemgateError) -> Stub:
    def answer(_: Work) -> str:
        raise error

    return Stub(answer)


# --- answers


def test_an_answer_counts_while_its_maker_is_there(place: Place) -> None:
    """Asked again, it is found; by workers of its identity, or with none at all."""
    first = _ask(place, _fit())
    without_workers = _ask(place, _fit())
    place.announce()
    with_workers = _ask(place, _fit())

    states = [record.state for record in (first, without_workers, with_workers)]
    assert states == [JobState.QUEUED, JobState.DONE, JobState.DONE]
    assert len(place.stub.asked) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("__version__", "0.0.1"), ("ENGINE_REVISION", 0)], ids=["version", "engine"]
)
def test_an_answer_of_another_identity_is_worked_out_anew(
    place: Place, name: str, value: object
) -> None:
    """A new version or engine revision never shows an older one's answer as its own."""
    with pytest.MonkeyPatch.context() as older:
        older.setattr(identity, name, value)
        _ask(place, _fit())
    place.announce()

    again = _ask(place, _fit())

    assert again.state is JobState.QUEUED
    assert len(place.stub.asked) == 2
    assert place.client.read(again.id).identity == identity.identify_work(_fit())


def test_an_answer_without_an_identity_is_worked_out_anew(place: Place) -> None:
    """As versions before this one stored them."""
    job_id = _ask(place, _fit()).id
    place.redis.hdel(f"memgate:job:{job_id}", "identity")
    place.announce()

    assert _ask(place, _fit()).state is JobState.QUEUED


def test_two_kinds_of_workers_side_by_side_share_their_answers(place: Place) -> None:
    """While an upgrade is under way, what either has answered counts."""
    _ask(place, _fit())
    place.announce(_other(make_announcement(place.settings), revision=99))
    place.announce()

    assert _ask(place, _fit()).state is JobState.DONE


def test_a_worker_that_signs_off_no_longer_counts(place: Place) -> None:
    """What it announced goes with it."""
    _ask(place, _fit())
    place.announce(_other(make_announcement(place.settings), revision=99))
    leaving = place.announce()
    leaving.register_death()  # type: ignore[no-untyped-call]

    assert _ask(place, _fit()).state is JobState.QUEUED


def test_an_answer_for_a_runtime_that_nobody_has_any_more_is_given(place: Place) -> None:
    """Workers are there, but none that could do better."""
    _ask(place, _fit())
    known = make_announcement(place.settings)
    others = tuple(engine for engine in known.engines if engine.runtime.name != "torch-2.14")
    place.announce(replace(known, engines=others))

    assert _ask(place, _fit()).state is JobState.DONE


def test_a_trace_needs_no_runtime(place: Place) -> None:
    """Its answer depends on memgate's own version and revision alone."""
    trace = make_work()
    _ask(place, trace)
    known = make_announcement(place.settings)
    traces_only = tuple(engine for engine in known.engines if not engine.runtime.name)

    announced = place.announce(replace(known, engines=traces_only))
    assert _ask(place, trace).state is JobState.DONE

    announced.register_death()  # type: ignore[no-untyped-call]
    place.announce(_other(known, revision=99))
    assert _ask(place, trace).state is JobState.QUEUED


def test_a_service_drops_what_it_remembers_of_other_identities(
    place: Place, redis_url: str
) -> None:
    """Bytes in its memory count no more than what is in the store; soon, not at once."""
    body = {"job": _fit().model_dump(mode="json", by_alias=True)["job"]}

    with TestClient(create_app(ServiceSettings(redis_url=redis_url))) as service:

        def ask() -> tuple[int, str | None]:
            said = service.post("/fit", json=body)
            return said.status_code, said.headers.get("x-memgate-cache")

        place.announce()
        answers = [ask()]
        place.work()
        answers += [ask(), ask()]
        for worker in place.signed_on:
            worker.register_death()  # type: ignore[no-untyped-call]
        place.announce(_other(make_announcement(place.settings), revision=99))
        wait_until(lambda: ask() != (200, "memory"), "the service notices")
        answers.append(ask())

    assert answers == [(202, None), (200, "store"), (200, "memory"), (202, None)]


def test_an_unreadable_announcement_is_none(place: Place) -> None:
    """A worker of another version does not stop this one's service."""
    _ask(place, _fit())
    worker = place.announce()
    place.redis.hset(worker.key, "memgate_announcement", '{"engines": 1}')

    assert place.client.identities() == frozenset()
    assert _ask(place, _fit()).state is JobState.DONE


@pytest.mark.parametrize(
    "broken",
    [
        {"result": '{"gpus": ['},
        {"result": "\xff"},
        {"work": "{}"},
        {"kind": "of another version"},
        {"created_at": "yesterday"},
        {"state": "failed", "error": "{"},
        {"state": "failed", "error": '{"code": "OLD", "message": "has no fault"}'},
    ],
)
def test_a_job_that_cannot_be_read_is_absent(place: Place, broken: dict[str, str]) -> None:
    """Never an error: asked again, it is begun anew."""
    job_id = _ask(place, _fit()).id
    place.redis.hset(f"memgate:job:{job_id}", mapping=broken)

    assert place.store.read_many(place.store.newest(0, 9)) == []
    with pytest.raises(UnknownJobError):
        place.client.read(job_id)
    again = _ask(place, _fit())

    assert again.state is JobState.QUEUED
    assert place.client.read(job_id).state is JobState.DONE
    assert place.store.num_open() == 0


def test_a_curve_that_cannot_be_read_is_absent(place: Place) -> None:
    """A page without a picture, not a failure."""
    place.store.save_timeline("view:job", b"not compressed")

    assert place.store.load_view("job") is None


# --- failures


@pytest.mark.parametrize(
    "error",
    [InputError("no"), JobFailedError("dies"), NotModelledError("cannot")],
    ids=["caller", "job", "unsupported"],
)
def test_a_failure_that_would_come_again_is_remembered_under_its_identity(
    make_place: MakePlace, error: MemgateError
) -> None:
    """Another runtime or engine revision tries anew."""
    place = make_place(_raising(error))
    _ask(place, _fit())
    same = place.announce()
    again = _ask(place, _fit())
    same.register_death()  # type: ignore[no-untyped-call]
    place.announce(_other(make_announcement(place.settings), revision=99))
    anew = _ask(place, _fit())

    assert (again.state, anew.state) == (JobState.FAILED, JobState.QUEUED)
    assert len(place.stub.asked) == 2


@pytest.mark.parametrize(
    ("error", "higher"),
    [
        (HostMemoryError("over 8 GiB"), {"memory_bytes": 9 * GIB}),
        (TimeLimitError("over 600 s"), {"seconds": 601.0}),
    ],
    ids=["memory", "time"],
)
def test_a_job_over_a_limit_is_tried_again_only_under_a_higher_one(
    make_place: MakePlace, error: MemgateError, higher: dict[str, Any]
) -> None:
    """The same limit, or the other one raised, would end it the same way."""
    place = make_place(_raising(error))
    _ask(place, _fit())
    known = make_announcement(place.settings)
    other = {"seconds": 601.0} if "memory_bytes" in higher else {"memory_bytes": 9 * GIB}
    states: list[JobState] = []
    for limits in ({}, {"memory_bytes": GIB, "seconds": 1.0}, other, higher):
        announced = replace(known, limits=replace(known.limits, **limits))
        worker = place.announce(announced)
        states.append(_ask(place, _fit()).state)
        worker.register_death()  # type: ignore[no-untyped-call]

    assert states == [JobState.FAILED, JobState.FAILED, JobState.FAILED, JobState.QUEUED]
    assert len(place.stub.asked) == 2


def test_the_highest_limit_of_all_workers_counts(make_place: MakePlace) -> None:
    """One that allows more is enough."""
    place = make_place(_raising(HostMemoryError("over 8 GiB")))
    _ask(place, _fit())
    known = make_announcement(place.settings)
    place.announce()
    place.announce(replace(known, limits=RunLimits(memory_bytes=16 * GIB, seconds=1.0)))

    assert _ask(place, _fit()).state is JobState.QUEUED


@needs_runtime
def test_a_runtime_that_was_missing_is_used_once_it_is_installed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's failure is not remembered, and the worker need not be started again."""
    installed = read_runtimes()["torch-2.14"].home
    monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path))
    worker = place.announce()
    with EngineAnswerer(place.store, place.settings) as answerer:
        place.use(answerer)
        missing = place.client.read(_ask(place, _job()).id)
        (tmp_path / "torch-2.14").symlink_to(installed)
        worker.report_in()
        answered = place.client.read(_ask(place, _job()).id)

    assert missing.error is not None
    assert (missing.state, missing.error.code) == (JobState.FAILED, "RUNTIME_MISSING")
    assert (answered.state, answered.error) == (JobState.DONE, None)
    assert answered.identity in place.client.identities()


# --- runs


def _num_replayed(place: Place) -> tuple[int, int]:
    counters = place.store.counters()
    return int(counters.get("timelines/yes", 0)), int(counters.get("timelines/no", 0))


@needs_runtime
@pytest.mark.parametrize(
    ("name", "value"),
    [("__version__", "9.9"), ("ENGINE_REVISION", 99)],
    ids=["version", "revision"],
)
def test_a_new_version_replays_no_run_of_an_old_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    """What docs/operations.md promises: it works everything out anew."""
    with EngineAnswerer(place.store, place.settings) as answerer:
        place.use(answerer)
        place.announce()
        first = _ask(place, _job())
        other = _ask(place, _job(allocator="expandable_segments:True"))
        assert _num_replayed(place) == (1, 1)
        monkeypatch.setattr(identity, name, value)
        place.announce()
        for job_id in (first.id, other.id):  # as if the ids did not have the version in them
            place.store.discard(job_id)
        anew = _ask(place, _job())

    assert _num_replayed(place) == (1, 2)
    assert place.client.read(anew.id).state is JobState.DONE


@needs_runtime
def test_a_stored_run_that_cannot_be_read_is_made_again(place: Place) -> None:
    """Empty, something else, cut off: the job is answered, and the record replaced."""
    with EngineAnswerer(place.store, place.settings) as answerer:
        place.use(answerer)
        job_id = _ask(place, _job()).id
        (stored,) = place.redis.keys("memgate:timeline:[0-9a-f]*")
        whole = place.redis.get(stored)
        for broken in (b"", b"x", whole[:-9]):
            place.redis.set(stored, broken)
            place.store.discard(job_id)
            _ask(place, _job())

            assert place.client.read(job_id).state is JobState.DONE
            assert len(place.redis.get(stored)) > len(whole) / 2

    assert _num_replayed(place) == (0, 4)


@needs_runtime
def test_the_service_knows_which_runs_are_stored_by_the_same_key(place: Place) -> None:
    """A replay is fast work; other multiprocessors, or another identity, need a run."""
    with EngineAnswerer(place.store, place.settings) as answerer:
        place.use(answerer)
        worker = place.announce()
        _ask(place, _job())

        assert place.client.needs_run(_job(gpu="a100-80")) is False
        assert place.client.needs_run(_job(gpu="a30")) is True
        assert place.client.needs_run(_job(gpu="a100-80", cudnn_benchmark=True)) is True
        worker.register_death()  # type: ignore[no-untyped-call]
        assert place.client.needs_run(_job(gpu="a100-80")) is True, "nobody says what is stored"
        place.announce(_other(make_announcement(place.settings), revision=99))
        assert place.client.needs_run(_job(gpu="a100-80")) is True


@needs_runtime
def test_an_answer_does_not_depend_on_what_was_asked_before(place: Place) -> None:
    """A GPU of the same generation with other multiprocessors is not answered by replay."""
    vit = {
        "model": {"source": "torchvision", "name": "vit_b_16"},
        "input": {"shape": [3, 224, 224]},
        "batch_size": 32,
        "iterations": 1,
    }
    works = [
        Work(kind=WorkKind.ESTIMATE, job=parse_job_spec(vit), gpu=GpuRequest(name=name))
        for name in ("rtx-3060", "rtx-3090")
    ]
    needed: list[dict[str, int]] = []
    with EngineAnswerer(place.store, place.settings) as answerer:
        for order in (works, works[::-1]):
            place.redis.flushdb()
            results = {work.gpu: answerer.answer(work).result for work in order}
            needed.append({str(gpu): said.required_bytes for gpu, said in results.items()})  # type: ignore[union-attr]

    assert needed[0] == needed[1]
    assert len(set(needed[0].values())) == 2, "these two GPUs were chosen because they differ"


def test_nothing_is_fast_work_that_no_worker_can_replay(place: Place) -> None:
    """Without announcements a question waits for a run."""
    place.client.submit(_job())

    assert place.client.depths()["memgate-slow-normal"] == 1
