"""What an operator set wrong is told in a sentence."""

from __future__ import annotations

import pytest

from memgate_service.settings import ServiceSettings
from memgate_worker.settings import WorkerSettings


def test_a_wrong_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback at the start of a program."""
    monkeypatch.setenv("MEMGATE_PORT", "abc")

    with pytest.raises(SystemExit, match="MEMGATE_PORT is 'abc': Input should be a valid integer"):
        ServiceSettings.from_environment()


def test_a_queue_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the worker waits on it for ever."""
    monkeypatch.setenv("MEMGATE_QUEUES", "fast,slwo")

    with pytest.raises(SystemExit, match=r"MEMGATE_QUEUES is 'fast,slwo': .*write 'fast', 'slow'"):
        WorkerSettings.from_environment()
