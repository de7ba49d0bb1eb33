"""Time in which memgate is at work is counted once, whoever waits for it."""

from __future__ import annotations

from memgate_worker.recorder.stopwatch import Stopwatch


def test_times_that_overlap_count_once() -> None:
    """And what is going on counts already."""
    clock = [0.0]
    watch = Stopwatch(lambda: clock[0])

    first, second = watch.running(), watch.running()
    with first:
        clock[0] = 2.0
        second.__enter__()
        clock[0] = 3.0
    assert watch.seconds == 3.0
    clock[0] = 5.0
    second.__exit__(None, None, None)
    clock[0] = 9.0

    assert watch.seconds == 5.0
