"""Timeline, Replay -> the memory curve as columns of a table: what was held after each event.

Every event is there; ``views`` has the thinned curve that pages show. Writing it is up to the
doors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memgate.allocator.replay import Replay
from memgate.stacks import expand_reserved, phase_spans, stack_categories
from memgate.timeline import Category, Timeline

#: columns by name, all of one length
Curve = Mapping[str, Sequence[int] | Sequence[str]]


def make_curve(timeline: Timeline, replayed: Replay) -> Curve:
    """Return the curve of a replay; sizes are bytes.

    Phases and categories are there if the timeline knows them: of categories all, so that the
    columns are the same for every job. They add up to what is allocated.
    """
    num_events = replayed.num_events
    columns: dict[str, Sequence[int] | Sequence[str]] = {"event": range(num_events)}
    if timeline.phases:
        columns["phase"] = _phases(timeline, num_events)
    columns["reserved_bytes"] = expand_reserved(replayed)
    columns["allocated_bytes"] = replayed.allocated_series
    if timeline.labels:
        stacked = stack_categories(timeline, replayed)
        for category in Category:
            columns[f"{category.value}_bytes"] = stacked.get(category, [0] * num_events)
    return columns


def _phases(timeline: Timeline, num_events: int) -> list[str]:
    names = [""] * num_events
    for phase, begin, end in phase_spans(timeline, num_events):
        names[begin:end] = [phase.value] * (end - begin)
    return names
