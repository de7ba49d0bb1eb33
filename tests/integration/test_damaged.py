"""What another version or another program left on the server is absent, never an error."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from fastapi.testclient import TestClient

from memgate.contract import JobState
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.history import read_history
from memgate_worker.queue.outcomes import MeasuredOutcome
from tests.integration.queue_place import Place

OUTCOME = MeasuredOutcome(
    job="j",
    model="resnet18",
    gpu="t4",
    predicted_peak_bytes=10,
    upper_bound_bytes=12,
    measured_peak_bytes=11,
    ran_out=False,
)


def _get(place: Place, path: str) -> int:
    settings = ServiceSettings(redis_url=place.settings.redis_url)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        return client.get(path).status_code


@pytest.mark.parametrize(
    "fields", [{"outcome": "{"}, {"outcome": '{"job": "j"}'}, {"other": "x"}, {"outcome": b"\xff"}]
)
def test_an_outcome_that_cannot_be_read_is_left_out(place: Place, fields: Any) -> None:
    """The others still count, and the page is there."""
    place.store.add_outcome(OUTCOME)
    place.redis.xadd("memgate:outcomes", fields)

    assert place.store.outcomes() == [OUTCOME]
    assert _get(place, "/accuracy") == HTTPStatus.OK


@pytest.mark.parametrize("value", ["many", "nan", b"\xff"])
def test_a_counter_that_is_not_a_number_is_left_out(place: Place, value: Any) -> None:
    """Metrics show all others."""
    place.store.count("jobs", "estimate:admit")
    place.redis.hset("memgate:counters", "jobs/other", value)

    assert place.store.counters() == {"jobs/estimate:admit": 1}
    assert _get(place, "/metrics") == HTTPStatus.OK


@pytest.mark.parametrize("field", ["result", "work", "created_at"])
def test_a_job_that_lacks_a_part_is_not_there(place: Place, field: str) -> None:
    """It is 404, and is worked out anew when it is asked again."""
    job_id = place.submit().id
    place.work()
    place.redis.hdel(f"memgate:job:{job_id}", field)

    assert _get(place, f"/jobs/{job_id}") == HTTPStatus.NOT_FOUND
    assert _get(place, f"/ui/jobs/{job_id}") == HTTPStatus.NOT_FOUND
    place.submit()
    place.work()
    assert place.read().state is JobState.DONE


def test_a_state_that_is_unknown_is_none(place: Place) -> None:
    """Another version may know more of them."""
    job_id = place.submit().id
    place.redis.hset(f"memgate:job:{job_id}", "state", "asleep")

    assert place.store.states([job_id]) == [None]


def test_a_line_of_history_that_is_cut_off_is_left_out(place: Place) -> None:
    """The dashboard shows the others."""
    place.submit()
    place.work()
    place.redis.lpush("memgate:decisions", '{"job": "')

    assert len(list(read_history(place.store))) == 1
    assert _get(place, "/") == HTTPStatus.OK


@pytest.mark.parametrize(
    "damage",
    [
        lambda redis: redis.set("memgate:timelines:total", "much"),
        lambda redis: redis.set("memgate:timelines", "x"),
        lambda redis: redis.set("memgate:timelines:sizes", "x"),
    ],
    ids=["total", "index", "sizes"],
)
def test_a_damaged_index_of_timelines_is_begun_anew(
    place: Place, damage: Callable[[Any], None]
) -> None:
    """Runs are kept again; no job fails over it."""
    damage(place.redis)

    assert place.store.load_timeline("other") is None
    place.store.save_timeline("name", b"a run")
    assert place.store.load_timeline("name") == b"a run"
