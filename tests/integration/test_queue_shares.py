"""The queue on a real Valkey: callers take turns, and none of them takes all of it."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from memgate.contract import Asker, JobState, NotYoursError, Priority, QueueFullError
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
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


def test_callers_withdraw_and_the_last_one_ends_the_job(place: Place) -> None:
    """A run is shared by all who ask the same: one of them does not take it from the others."""
    _submit(place, "key a", 0)
    _submit(place, "key b", 0)
    job_id = make_work(0, place.kind).id()

    with pytest.raises(NotYoursError, match="key c has not asked for job"):
        place.client.cancel(job_id, "key c")
    assert place.client.cancel(job_id, "key a").state is JobState.QUEUED
    with pytest.raises(NotYoursError):
        place.client.cancel(job_id, "key a")
    assert place.client.cancel(job_id, "key b").state is JobState.CANCELED
    assert place.client.cancel(job_id, "key c").state is JobState.CANCELED  # it stays as it is


def test_a_caller_that_withdrew_must_ask_again(place: Place) -> None:
    """A job that starts over is wanted by who has asked since."""
    _submit(place, "key a", 0)
    job_id = make_work(0, place.kind).id()
    place.client.cancel(job_id, "key a")
    _submit(place, "key b", 0)

    with pytest.raises(NotYoursError):
        place.client.cancel(job_id, "key a")


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
        canceled = client.delete(location, headers=admin)

    assert (refused.status_code, refused.json()["code"]) == (403, "NOT_YOURS")
    assert canceled.json()["state"] == "canceled"
