"""What a worker does without the sandbox that its operator demands."""

from __future__ import annotations

import pytest

from memgate.contract import Work, WorkKind
from memgate.errors import SandboxError
from memgate.gpus import GpuRequest
from memgate_worker.answers import EngineAnswerer
from memgate_worker.main import make_announcement
from memgate_worker.queue.announcements import REFUSED
from memgate_worker.sandbox.level import Level
from tests.integration.queue_place import Place
from tests.integration.test_question_time import JOB


def test_nothing_of_a_callers_is_run_below_the_operators_level(place: Place) -> None:
    """GIVEN no sandbox where one is demanded THEN a job is refused, and the worker announces it."""
    settings = place.settings.model_copy(
        update={"sandbox": Level.NONE, "sandbox_level": Level.LANDLOCK}
    )

    with (
        EngineAnswerer(place.store, settings) as answerer,
        pytest.raises(SandboxError, match="MEMGATE_SANDBOX_LEVEL"),
    ):
        answerer.answer(Work(kind=WorkKind.ESTIMATE, job=JOB, gpu=GpuRequest(name="t4")))

    assert make_announcement(settings).sandbox == REFUSED


def test_a_worker_announces_the_level_that_it_uses(place: Place) -> None:
    """As the service's readiness shows it."""
    settings = place.settings.model_copy(update={"sandbox": Level.NONE})

    assert make_announcement(settings).sandbox == "none"
