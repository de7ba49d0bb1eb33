"""Replay, figures per iteration -> where each iteration of a training run ended.

A recorded training run says what was allocated and reserved at the end of each iteration, and the
peaks so far, but not at which events iterations ended. The earliest events that fit are found:
since the peaks only grow, an earlier choice never spoils a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from memgate.allocator.replay import Replay


def find_iterations(replayed: Replay, iterations: Sequence[Sequence[int]]) -> list[int]:
    """Return the index of each iteration's last event, as many as can be found.

    Args:
        replayed: the run.
        iterations: for each, [allocated at its end, peak, reserved at its end, peak]; peaks are
            those since the start of the run.
    """
    states = zip(
        replayed.allocated_series,
        accumulate(replayed.allocated_series, max),
        reserved_series := _reserved_series(replayed),
        accumulate(reserved_series, max),
        strict=True,
    )
    found: list[int] = []
    for index, state in enumerate(states):
        if len(found) < len(iterations) and state == tuple(iterations[len(found)]):
            found.append(index)
    return found


def _reserved_series(replayed: Replay) -> list[int]:
    """Spread the changes of reserved bytes over all events."""
    series = []
    reserved = 0
    changes = iter([*replayed.reserved_changes, (replayed.num_events, 0)])
    next_index, next_reserved = next(changes)
    for index in range(replayed.num_events):
        if index == next_index:
            reserved = next_reserved
            next_index, next_reserved = next(changes)
        series.append(reserved)
    return series
