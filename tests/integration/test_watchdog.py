"""Orphaned jobs are found and queued again; leases say which worker holds a job."""

from __future__ import annotations

import time
from collections.abc import Callable

from memgate.contract import JobState, Priority
from tests.integration.queue_place import Place, make_work

MakePlace = Callable[..., Place]


def _sweep_until_missed(place: Place) -> int:
    """Look twice, more than half a lease apart."""
    watchdog = place.watchdog()
    assert watchdog.sweep(now=0.0) == 0, "missed at first sight"
    return watchdog.sweep(now=place.settings.lease_seconds)


def test_a_job_that_was_never_queued_is_rescued(place: Place) -> None:
    """The service died between remembering it and telling the workers."""
    work = make_work()
    assert place.store.create(work.id(), work, Priority.HIGH)

    assert _sweep_until_missed(place) == 1
    assert place.client.depths()["memgate-slow-high"] == 1
    place.work()
    assert place.read().state is JobState.DONE


def test_a_job_that_was_taken_and_never_begun_is_rescued(place: Place) -> None:
    """The worker died, or rq lost it, between queue and worker."""
    place.submit()
    place.lose_queue()

    assert _sweep_until_missed(place) == 1
    place.work()
    assert place.read().state is JobState.DONE


def test_the_job_of_a_dead_worker_is_rescued_when_its_lease_is_over(place: Place) -> None:
    """Not before: the worker may live."""
    job_id = place.submit().id
    place.lose_queue()
    assert place.store.begin(job_id, "dead")

    assert _sweep_until_missed(place) == 0
    place.run_out(job_id)
    assert _sweep_until_missed(place) == 1
    place.work()

    record = place.read()
    assert (record.state, record.attempts) == (JobState.DONE, 2)
    assert not place.store.finish(job_id, "{}"), "the dead come too late"


def test_a_lease_runs_out_by_itself(make_place: MakePlace) -> None:
    """Nobody has to be told that a worker is dead."""
    place = make_place(lease_seconds=1)
    job_id = place.submit().id
    assert place.store.begin(job_id, "dead")
    assert not place.store.begin(job_id, "next")

    deadline = time.monotonic() + 30
    while not place.store.begin(job_id, "next"):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert not place.store.hold(job_id, "dead")
    assert place.store.hold(job_id, "next")


def test_too_many_lost_workers_fail_a_job(make_place: MakePlace) -> None:
    """A job that kills its workers must not go on for ever; asked again, it is begun anew."""
    place = make_place(max_attempts=2)
    job_id = place.submit().id
    place.lose_queue()
    for attempt in range(2):
        assert place.store.begin(job_id, f"victim {attempt}")
        place.run_out(job_id)

    assert _sweep_until_missed(place) == 1

    record = place.read()
    assert record.error is not None
    assert (record.state, record.error.code) == (JobState.FAILED, "WORKERS_LOST")
    assert place.submit().state is JobState.QUEUED


def test_one_watchdog_rescues_a_job(place: Place) -> None:
    """There are many, and all see the same."""
    place.submit()
    place.lose_queue()
    watchdogs = [place.watchdog() for _ in range(3)]
    lease = place.settings.lease_seconds

    for now in (0.0, lease):
        rescued = [watchdog.sweep(now) for watchdog in watchdogs]

    assert rescued == [1, 0, 0]
    assert sum(place.client.depths().values()) == 1


def test_what_expired_leaves_the_list_of_open_jobs(place: Place) -> None:
    """There is nothing to rescue."""
    job_id = place.submit().id
    place.lose_queue()
    place.redis.delete(f"memgate:job:{job_id}")

    assert _sweep_until_missed(place) == 0
    assert place.store.num_open() == 0


def test_a_job_in_the_queue_or_held_is_left_alone(place: Place) -> None:
    """However long it takes."""
    place.submit(0)
    assert place.store.begin(place.submit(1).id, "somebody")

    assert _sweep_until_missed(place) == 0


def test_taking_a_job_twice_counts_once(place: Place) -> None:
    """The server may die with the answer unsent: the same worker then asks again."""
    job_id = place.submit().id

    assert place.store.begin(job_id, "one")
    assert place.store.begin(job_id, "one")
    assert not place.store.begin(job_id, "other")
    assert place.read().attempts == 1


def test_a_lease_that_ran_out_is_renewed_if_nobody_took_the_job(place: Place) -> None:
    """The server was away for longer than a lease; the worker was not."""
    job_id = place.submit().id
    assert place.store.begin(job_id, "one")
    place.run_out(job_id)

    assert place.store.hold(job_id, "one")
    assert not place.store.begin(job_id, "other")


def test_only_the_holder_can_give_a_job_back(place: Place) -> None:
    """A worker that lost its lease must not end that of the next one."""
    job_id = place.submit().id
    assert place.store.begin(job_id, "next")

    place.store.release(job_id, "before")
    assert not place.store.begin(job_id, "other")

    place.store.release(job_id, "next")
    assert place.read().state is JobState.QUEUED
    assert place.store.begin(job_id, "other")


def test_one_watchdog_looks_until_it_is_lost(make_place: MakePlace) -> None:
    """Looking costs the server something; there may be hundreds of workers."""
    place = make_place(lease_seconds=1)

    assert place.store.lead("one")
    assert place.store.lead("one")
    assert not place.store.lead("other")
    deadline = time.monotonic() + 30
    while not place.store.lead("other"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_watchdog_rescues_by_itself(make_place: MakePlace) -> None:
    """As a thread, like in every program."""
    place = make_place(lease_seconds=1)
    place.submit()
    place.lose_queue()
    watchdog = place.watchdog()
    watchdog.start()
    try:
        deadline = time.monotonic() + 30
        while not sum(place.client.depths().values()):
            assert time.monotonic() < deadline, "never rescued"
            time.sleep(0.1)
    finally:
        watchdog.stop()


def test_looking_at_many_queued_jobs_is_cheap(place: Place) -> None:
    """A handful of commands, not one for each job."""
    for number in range(200):
        place.submit(number)
    before = place.redis.info("stats")["total_commands_processed"]
    assert _sweep_until_missed(place) == 0
    after = place.redis.info("stats")["total_commands_processed"]

    assert after - before < 30
