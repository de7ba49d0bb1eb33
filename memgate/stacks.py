"""Timeline, Replay -> what each category held after each event: a picture's layers.

Drawing them is up to the doors.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from memgate.allocator.replay import Replay
from memgate.timeline import Alloc, Category, Free, Phase, Timeline


def stack_categories(
    timeline: Timeline, replayed: Replay, events: Iterable[int] | None = None
) -> Mapping[Category, Sequence[int]]:
    """Return the bytes of each category that occurs, after each event of a replay.

    They add up to ``allocated_series``: what an event changes there is its block's, rounding
    included, and a request that failed changes nothing. ``events``, in their order, are those that
    are wanted; all unless given.
    """
    held = dict.fromkeys(Category, 0)
    series = {category: array("q") for category in Category}
    labels, allocated = timeline.labels, replayed.allocated_series
    first = before = 0
    for wanted in range(len(allocated)) if events is None else events:
        for index in range(first, wanted + 1):
            event, after = timeline.events[index], allocated[index]
            if after != before and isinstance(event, (Alloc, Free)):
                held[labels[event.block_id].category] += after - before
            before = after
        first = wanted + 1
        for category, size in held.items():
            series[category].append(size)
    return {category: sizes for category, sizes in series.items() if any(sizes)}


def expand_reserved(replayed: Replay) -> Sequence[int]:
    """Return what was reserved after each event."""
    series = array("q")
    size = 0
    for at, after in replayed.reserved_changes:
        series.extend([size] * (at - len(series)))
        size = after
    series.extend([size] * (replayed.num_events - len(series)))
    return series


def pick_events(sizes: Sequence[int], most: int) -> list[int]:
    """Return the events to show in a picture of at most ``most`` points; all of them if they fit.

    For each stretch of events these are the lowest and the highest, so that no peak is lost; the
    first and the last event are always among them.
    """
    return pick_extremes([sizes], most)


def pick_extremes(
    curves: Sequence[Sequence[int]], most: int, keep: Iterable[int] = ()
) -> list[int]:
    """Do the same for curves over the same events; the events to ``keep`` are always shown."""
    num_events = len(curves[0])
    if num_events <= most:
        return list(range(num_events))
    num_stretches = max(1, most // (2 * len(curves)) - 1)
    chosen = {0, num_events - 1, *(at for at in keep if 0 <= at < num_events)}
    for number in range(num_stretches):
        begin = number * num_events // num_stretches
        end = (number + 1) * num_events // num_stretches
        for sizes in curves:
            stretch = sizes[begin:end]
            chosen.add(begin + stretch.index(min(stretch)))
            chosen.add(begin + stretch.index(max(stretch)))
    return sorted(chosen)


def phase_spans(timeline: Timeline, num_events: int) -> Iterator[tuple[Phase, int, int]]:
    """Return each phase with its first event and the one after its last, up to the last event.

    Empty if no phases are known.
    """
    begins = [start.event_index for start in timeline.phases]
    for start, end in zip(timeline.phases, [*begins[1:], num_events], strict=False):
        if start.event_index < min(end, num_events):
            yield start.phase, start.event_index, min(end, num_events)
