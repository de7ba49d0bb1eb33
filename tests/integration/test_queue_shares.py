"""The queue on a real Valkey: callers take turns, and none of them takes all of it."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from memgate.contract import Asker, JobState, Priority, QueueFullError
from memgate.owner import Owner
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.client import AskedQuestion
from memgate_worker.queue.keys import Role
from memgate_worker.queue.queues import Speed, make_queue, queue_names
from tests.integration.queue_place import Place, make_work
from tests.integration.running import make_key


def _submit(place: Place, caller: str, *numbers: int, priority: Priority = Priority.NORMAL) -> None:
    for number in numbers:
        place.client.submit(make_work(number, place.kind), priority, Asker.CALLER, caller)


def _order(place: Place) -> list[int]:
    """Return the numbers of the questions in the order in which they were answered."""
    numbers = {make_work(number, place.kind).id(): number for number in range(100)}
    place.work()
    return [numbers[work.id()] for work in place.stub.asked]


def test_callers_take_turns(place: Place) -> None:
    """GIVEN a long row of one caller WHEN another asks THEN it waits for one of them."""
    _submit(place, "long", *range(10))
    _submit(place, "short", 50)

    assert _order(place).index(50) == 1


def test_three_callers_are_served_alike(place: Place) -> None:
    """However many questions each has, and in whatever order they came."""
    _submit(place, "a", *range(6))
    _submit(place, "b", *range(20, 24))
    _submit(place, "c", 40, 41)

    order = _order(place)

    assert order[:6] == [0, 20, 40, 1, 21, 41]
    assert order[6:] == [2, 22, 3, 23, 4, 5]


def test_a_caller_that_was_away_is_owed_nothing(place: Place) -> None:
    """A caller that comes late takes turns from then on, and is owed nothing."""
    _submit(place, "early", *range(8))
    queue = make_queue(queue_names([Speed.SLOW])[1], place.redis)
    first = queue.pop_job_id()  # a worker has it
    assert first is not None
    _submit(place, "late", *range(50, 54))

    assert _order(place) == [1, 50, 2, 51, 3, 52, 4, 53, 5, 6, 7]


def test_what_is_urgent_stays_so(place: Place) -> None:
    """Turns are taken among what is equally urgent."""
    _submit(place, "a", *range(3))
    _submit(place, "b", 50, priority=Priority.LOW)
    _submit(place, "a", 10, priority=Priority.HIGH)

    assert _order(place) == [10, 0, 1, 2, 50]


def test_nothing_is_kept_of_those_who_were_served(place: Place) -> None:
    """Numbers of tasks and callers are dropped: when nothing waits, and now and then before."""
    _submit(place, "a", 0)
    queue = make_queue(queue_names([Speed.SLOW])[1], place.redis)
    turns, callers = f"memgate:turns:{queue.name}", f"memgate:callers:{queue.name}"
    place.redis.hset(turns, mapping={f"gone{number}": number for number in range(1100)})
    place.redis.hset(callers, mapping={f"gone{number}": 0 for number in range(50)})
    _submit(place, "a", 1)

    assert place.redis.hlen(turns) == 2
    assert place.redis.hkeys(callers) == [b"a"]
    _order(place)
    _submit(place, "b", 2)
    assert place.redis.hkeys(callers) == [b"b"]


def test_tasks_of_an_older_version_come_first(place: Place) -> None:
    """They have no number; whoever waits longest is not overtaken by an upgrade."""
    _submit(place, "a", 0, 1)
    queue = make_queue(queue_names([Speed.SLOW])[1], place.redis)
    place.redis.delete(f"memgate:turns:{queue.name}", f"memgate:callers:{queue.name}")
    _submit(place, "b", 50)

    assert _order(place) == [0, 1, 50]


def test_jobs_that_ended_unnoticed_take_no_place(redis_url: str) -> None:
    """They expired, or a worker of an older version ended them, which does not count callers."""
    place = Place(redis_url, max_queued_each=2)
    try:
        _submit(place, "key a", 0, 1)
        place.store.forget_open(make_work(0, place.kind).id())
        _submit(place, "key a", 2)
    finally:
        place.close()


@pytest.mark.parametrize("ends", ["canceled", "answered"])
def test_one_caller_may_not_have_all_places(redis_url: str, ends: str) -> None:
    """What ended gives its place back, and others have theirs."""
    place = Place(redis_url, max_queued=10, max_queued_each=2)
    try:
        _submit(place, "key a", 0, 1)
        with pytest.raises(QueueFullError, match="2 jobs of key a are waiting"):
            _submit(place, "key a", 2)
        _submit(place, "key b", 2)
        _submit(place, "", 3, 4, 5)  # where nobody needs a key, nobody can be told apart
        if ends == "canceled":
            place.client.cancel(make_work(0, place.kind).id())
        else:
            place.work()
        _submit(place, "key a", 6)
    finally:
        place.close()


def _ask(place: Place, key: str, number: int = 0) -> AskedQuestion:
    record = place.client.ask(make_work(number, place.kind), Owner(key=key))
    question = place.client.questions.find(record.id)
    assert question is not None
    return question


def _withdraw(place: Place, question: AskedQuestion) -> JobState:
    place.client.questions.withdraw(question)
    return place.client.questions.read(question.id).state


def test_the_last_question_that_is_withdrawn_ends_the_run(place: Place) -> None:
    """A run is shared by all who ask the same: one of them does not take it from the others."""
    first, second, third = (_ask(place, key) for key in ("a", "b", "a"))

    assert len({first.id, second.id, third.id, first.run}) == 4
    assert _withdraw(place, first) is JobState.CANCELED
    assert _withdraw(place, first) is JobState.CANCELED  # twice is like once
    assert _withdraw(place, second) is JobState.CANCELED
    assert place.read().state is JobState.QUEUED
    assert place.client.questions.read(third.id).state is JobState.QUEUED
    assert _withdraw(place, third) is JobState.CANCELED
    assert place.read().state is JobState.CANCELED


def test_a_question_that_was_withdrawn_stays_so(place: Place) -> None:
    """Though somebody else asks the same later, and gets an answer."""
    gone = _ask(place, "a")
    _withdraw(place, gone)
    later = _ask(place, "a")
    place.work()

    found = place.client.questions.read(gone.id)
    assert (found.state, found.result) == (JobState.CANCELED, None)
    assert found.error is not None
    assert found.error.code == "CANCELED"
    assert place.client.questions.read(later.id).state is JobState.DONE


def test_what_is_answered_is_not_withdrawn(place: Place) -> None:
    """It stays as it is."""
    question = _ask(place, "a")
    place.work()

    assert _withdraw(place, question) is JobState.DONE


def test_a_run_of_an_older_version_is_not_ended_by_one_question(place: Place) -> None:
    """It noted callers instead of questions: nobody knows how many of theirs there are."""
    _submit(place, "key old", 0)
    question = _ask(place, "new")

    assert _withdraw(place, question) is JobState.CANCELED
    assert place.read().state is JobState.QUEUED


@pytest.mark.parametrize("written", [b"", b"{}", b"[1]", b"\xff", b'{"id":"a","run":1}'])
def test_a_question_that_cannot_be_read_is_none(place: Place, written: bytes) -> None:
    """Another version wrote it, or another program: absent, not an error."""
    question = _ask(place, "a")
    place.redis.set(f"memgate:question:{question.id}", written)

    assert place.client.questions.find(question.id) is None
    assert place.client.questions.list(None, offset=0, count=9) == ([], None)
    assert place.client.questions.states([question.id]) == [None]


def test_questions_are_bounded_and_one_key_does_not_push_out_another_s(redis_url: str) -> None:
    """The newest of each are kept, and of all together."""
    place = Place(redis_url, max_jobs=5, max_jobs_each=3)
    try:
        kept = [_ask(place, "quiet", 0).id]
        loud = [_ask(place, "loud", 0).id for _ in range(7)]
        listed = [one.id for one in place.client.questions.list(["key loud"], offset=0, count=9)[0]]
        assert listed == loud[:-4:-1]
        assert place.client.questions.find(loud[0]) is None
        assert place.client.questions.find(kept[0]) is not None
        more = [_ask(place, f"key {number}", 0).id for number in range(3)]
        everybody = [one.id for one in place.client.questions.list(None, offset=0, count=9)[0]]
        assert everybody == [*more[::-1], *loud[:-3:-1]]
    finally:
        place.close()


def test_over_http_one_key_does_not_cancel_another_s_job(redis_url: str) -> None:
    """Except for an operator's."""
    app = create_app(ServiceSettings(redis_url=redis_url, api_keys="required"))
    mine, theirs, admin = (
        {"Authorization": f"Bearer {make_key(redis_url, role)}"}
        for role in (Role.SUBMIT, Role.SUBMIT, Role.ADMIN)
    )
    job = {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 32, 32]},
        "batch_size": 4,
    }
    with TestClient(app) as client:
        asked = {"job": job, "gpu": "rtx-3060"}
        location = client.post("/estimate", json=asked, headers=mine).headers["location"]
        refused = client.delete(location, headers=theirs)
        hidden = client.get(location, headers=theirs)
        canceled = client.delete(location, headers=admin)

    assert (refused.status_code, refused.json()["code"]) == (403, "NOT_YOURS")
    assert (hidden.status_code, hidden.json()["code"]) == (403, "NOT_YOURS")
    assert canceled.json()["state"] == "canceled"
