"""The garbage collector is paused, and goes on."""

from __future__ import annotations

import gc

import pytest

from memgate.collector import pause_collector


def test_the_collector_goes_on_after_an_error_too() -> None:
    """Nobody else should notice."""
    seen: list[bool] = []

    @pause_collector()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert (seen, gc.isenabled()) == ([False], True)


def test_a_collector_that_is_off_stays_off() -> None:
    """As in the process of an upload, and in a pause within a pause."""
    with pause_collector():
        with pause_collector():
            pass
        assert not gc.isenabled()
