"""Places for runs on a real Valkey: no caller has all of them while another waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from memgate.contract import Asker, JobState
from memgate_worker.queue.lease import Lease, LeaseLostError
from memgate_worker.queue.leases import PARKED, RUNNING
from memgate_worker.queue.referee import Referee
from tests.builders import build_estimate
from tests.integration.queue_place import Place, make_work
from tests.running import wait_until


def _submit(place: Place, caller: str, number: int) -> str:
    work = make_work(number, place.kind)
    return place.client.submit(work, asked_by=Asker.CALLER, caller=caller).id


def _age(place: Place, job_id: str, seconds: int) -> None:
    """Have a run begun so long ago."""
    since, _, caller = place.redis.hget(RUNNING, job_id).decode().partition(" ")
    place.redis.hset(RUNNING, job_id, f"{int(since) - 1000 * seconds} {caller}")


@pytest.fixture
def referee(place: Place) -> Referee:
    """Make one that looks when it is told to."""
    return Referee(place.store, place.settings)


def test_the_last_free_place_is_for_somebody_else(place: Place) -> None:
    """GIVEN a caller with a run WHEN its next job would take the last place THEN that waits."""
    first, second, other = (
        _submit(place, who, number) for number, who in enumerate(["flood", "flood", "other"])
    )

    assert place.store.begin(first, "w1", num_places=2)
    assert not place.store.begin(second, "w2", num_places=2)
    assert place.redis.lrange(PARKED, 0, -1) == [second.encode()]
    assert place.client.depths()["memgate-slow-parked"] == 1
    assert place.store.begin(other, "w2", num_places=2)


def test_with_more_places_a_caller_has_all_but_one(place: Place) -> None:
    """Of three places, one caller has two."""
    ids = [_submit(place, "flood", number) for number in range(3)]

    begun = [place.store.begin(one, f"w{one}", num_places=3) for one in ids]

    assert begun == [True, True, False]


def test_where_callers_are_not_told_apart_all_places_are_used(place: Place) -> None:
    """As on one's own machine, without keys."""
    ids = [_submit(place, "", number) for number in range(2)]

    assert [place.store.begin(one, f"w{one}", num_places=2) for one in ids] == [True, True]


def test_a_replay_needs_no_place(place: Place) -> None:
    """GIVEN a caller with a run WHEN it asks about a known one THEN that is not parked."""
    first, second = (_submit(place, "flood", number) for number in range(2))

    assert place.store.begin(first, "w1", num_places=2)
    assert place.store.begin(second, "w2", num_places=0)


def test_what_was_parked_is_queued_again_when_a_place_is_free(
    place: Place, referee: Referee
) -> None:
    """Once, and in the order in which it was parked."""
    ids = [_submit(place, "flood", number) for number in range(3)]
    place.lose_queue()
    assert [place.store.begin(one, "w1", num_places=2) for one in ids] == [True, False, False]
    referee.look(2)
    assert place.redis.llen(PARKED) == 2

    place.store.release(ids[0], "w1")
    referee.look(2)

    assert place.redis.lrange(PARKED, 0, -1) == [ids[2].encode()]
    place.work()
    assert [work.id() for work in place.stub.asked] == [ids[1]]


def test_a_worker_that_is_lost_leaves_no_place_taken(place: Place, referee: Referee) -> None:
    """Its lease has run out: whatever it ran has no place any more."""
    first, second = (_submit(place, "flood", number) for number in range(2))
    assert place.store.begin(first, "lost", num_places=2)
    assert not place.store.begin(second, "w2", num_places=2)

    place.run_out(first)
    referee.look(2)

    assert place.redis.hlen(RUNNING) == 0
    assert place.redis.llen(PARKED) == 0


def test_what_was_canceled_is_not_queued_again(place: Place, referee: Referee) -> None:
    """It is only taken off the list."""
    first, second = (_submit(place, "flood", number) for number in range(2))
    place.lose_queue()
    assert place.store.begin(first, "w1", num_places=2)
    assert not place.store.begin(second, "w2", num_places=2)
    place.client.cancel(second)

    referee.look(2)

    assert place.redis.llen(PARKED) == 0
    place.work()
    assert place.stub.asked == []


def test_a_parked_job_is_not_orphaned(place: Place) -> None:
    """GIVEN a job that is parked WHEN the watchdog looks THEN it leaves it alone."""
    first, second = (_submit(place, "flood", number) for number in range(2))
    place.lose_queue()
    assert place.store.begin(first, "w1", num_places=2)
    assert not place.store.begin(second, "w2", num_places=2)

    assert place.store.orphaned([]) == []


def test_the_longest_run_of_who_has_most_makes_room(place: Place, referee: Referee) -> None:
    """GIVEN all places taken WHEN a caller without a run waits THEN one is stopped for it."""
    flood = [_submit(place, "flood", number) for number in range(2)]
    single = _submit(place, "single", 2)
    for number, job_id in enumerate([*flood, single]):
        assert place.store.begin(job_id, f"w{number}", num_places=4)
    for job_id, seconds in zip([*flood, single], [5, 9, 60], strict=True):
        _age(place, job_id, seconds)
    place.lose_queue()
    waiting = _submit(place, "other", 3)

    referee.look(3)
    states = [place.store.read(one).state for one in flood]
    assert states == [JobState.RUNNING] * 2  # it has waited for a moment only
    referee.look(3)

    assert not place.store.hold(flood[1], "w1")
    assert [place.store.hold(one, who) for one, who in ((flood[0], "w0"), (single, "w2"))] == [
        True,
        True,
    ]
    stopped = place.store.read(flood[1])
    assert (stopped.state, stopped.attempts) == (JobState.QUEUED, 0)
    place.work()
    assert [work.id() for work in place.stub.asked] == [waiting, flood[1]]
    assert place.client.counters()["stops/room"] == 1


def _wait_for_room(place: Place, referee: Referee, number: int) -> bool:
    """Return whether a run is stopped for a caller that has none."""
    stops = place.client.counters().get("stops/room", 0)
    _submit(place, f"other {number}", number)
    referee.look(1)
    referee.look(1)
    return place.client.counters().get("stops/room", 0) > stops


def test_a_question_is_stopped_twice_at_the_most(place: Place, referee: Referee) -> None:
    """And then it runs to its end, whoever waits."""
    run = _submit(place, "flood", 0)
    stopped = []
    for number in range(1, 4):
        assert place.store.begin(run, "w1", num_places=1)
        _age(place, run, 60)
        stopped.append(_wait_for_room(place, referee, number))

    assert stopped == [True, True, False]
    assert place.store.hold(run, "w1")


def test_a_run_that_has_just_begun_goes_on(place: Place, referee: Referee) -> None:
    """Most runs end sooner than it would pay to stop them."""
    run = _submit(place, "flood", 0)
    assert place.store.begin(run, "w1", num_places=1)

    assert not _wait_for_room(place, referee, 1)


def test_nobody_is_stopped_for_a_caller_that_has_a_run(place: Place, referee: Referee) -> None:
    """GIVEN two callers with a run each WHEN one of them asks again THEN it waits."""
    for number, who in enumerate(["a", "b"]):
        run = _submit(place, who, number)
        assert place.store.begin(run, who, num_places=3)
        _age(place, run, 60)
    place.lose_queue()
    _submit(place, "a", 2)

    referee.look(2)
    referee.look(2)

    assert "stops/room" not in place.client.counters()


def test_a_search_for_advice_makes_room_first(place: Place, referee: Referee) -> None:
    """The answer stands, and nobody waits for the advice any longer."""
    advised, run = (_submit(place, who, number) for number, who in enumerate(["a", "b"]))
    assert place.store.begin(advised, "w1", num_places=3)
    assert place.store.begin(run, "w2", num_places=3)
    _age(place, run, 60)
    answer = build_estimate().model_dump_json()
    assert place.store.finish(advised, answer, with_advice_to_come=True)
    place.lose_queue()
    _submit(place, "other", 2)

    referee.look(2)
    referee.look(2)

    assert not place.store.hold(advised, "w1")
    assert place.store.hold(run, "w2")
    assert place.store.states([advised]) == [JobState.DONE]


def _hold_until_lost(place: Place, job_id: str, take_away: Callable[[], Any]) -> None:
    """Work on a job until its lease is lost, which ``take_away`` brings about."""
    taking = threading.Timer(0.1, take_away)
    taking.start()
    lease = Lease(place.store, job_id, "w1", seconds=3600)  # it is not renewed in this time
    with pytest.raises(LeaseLostError), lease:
        wait_until(lambda: False, "the lease is lost", 30)
    taking.join()


def test_a_worker_stops_in_a_moment_when_its_job_makes_room(place: Place, referee: Referee) -> None:
    """It need not renew its lease to notice."""
    run = _submit(place, "flood", 0)
    assert place.store.begin(run, "w1", num_places=1)
    _age(place, run, 60)

    _hold_until_lost(place, run, lambda: _wait_for_room(place, referee, 1))


def test_a_worker_stops_in_a_moment_when_its_job_is_canceled(place: Place) -> None:
    """The place is for somebody else then."""
    run = _submit(place, "a", 0)
    assert place.store.begin(run, "w1")

    _hold_until_lost(place, run, lambda: place.client.cancel(run))


def test_the_active_referee_looks_by_itself(place: Place) -> None:
    """GIVEN one place and a long run WHEN another caller waits THEN it gets the place."""
    run = _submit(place, "flood", 0)
    assert place.store.begin(run, "w1", num_places=1)
    _age(place, run, 60)
    place.lose_queue()
    place.announce()  # one worker, which is the only place
    referee = Referee(place.store, place.settings)
    referee.start()
    try:
        _submit(place, "other", 1)
        wait_until(lambda: place.client.counters().get("stops/room", 0) == 1, "it is stopped")
    finally:
        referee.stop()
