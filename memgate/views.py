"""Timeline, Replay -> what a page shows of it: the curve, thinned without losing its peak."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from pydantic import BaseModel, ConfigDict

from memgate.allocator.replay import Replay
from memgate.layers import find_layers, to_document
from memgate.stacks import phase_spans, pick_events, stack_categories
from memgate.timeline import Timeline

#: as wide as screens are
MAX_POINTS = 2000


class PhaseSpan(BaseModel):
    """A part of an iteration, by its first event and the one after its last."""

    model_config = ConfigDict(frozen=True)

    phase: str
    begin: int
    end: int


class TimelineView(BaseModel):
    """A memory curve: after each of some events, what was held. Sizes are bytes."""

    model_config = ConfigDict(frozen=True)

    num_events: int
    peak_event: int
    """At which most was reserved first."""
    events: list[int]
    """Which ones are shown."""
    reserved: list[int]
    allocated: list[int]
    categories: dict[str, list[int]]
    """Of the allocated; they add up to it."""
    phases: list[PhaseSpan]
    layers: dict[str, Any]
    """What each layer held at the peak, as a tree."""


def view_timeline(
    timeline: Timeline, replayed: Replay, *, max_points: int = MAX_POINTS
) -> TimelineView:
    """Pick what is shown; the peaks of both curves are among it."""
    allocated = replayed.allocated_series
    peak = replayed.peak_reserved_bytes
    changes = replayed.reserved_changes
    peak_event = next((at for at, size in changes if size == peak), 0)
    picked = set(pick_events(allocated, max_points))
    if replayed.num_events:
        picked.add(peak_event)
    events = sorted(picked)
    begins = [at for at, _ in changes]
    sizes = [0, *(size for _, size in changes)]
    stacked = stack_categories(timeline, replayed) if timeline.labels else {}
    return TimelineView(
        num_events=replayed.num_events,
        peak_event=peak_event,
        events=events,
        reserved=[sizes[bisect_right(begins, at)] for at in events],
        allocated=[allocated[at] for at in events],
        categories={
            category.value: [series[at] for at in events] for category, series in stacked.items()
        },
        phases=[
            PhaseSpan(phase=phase.value, begin=begin, end=end)
            for phase, begin, end in phase_spans(timeline, replayed.num_events)
        ],
        layers=dict(to_document(find_layers(timeline, replayed))) if timeline.labels else {},
    )
