"""Timeline, Replay -> what a page shows: the curve, thinned without losing its peak."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from pydantic import BaseModel, ConfigDict

from memgate.allocator.replay import Replay
from memgate.breakdown import find_peak
from memgate.layers import Layer, find_layers
from memgate.stacks import expand_reserved, phase_spans, pick_extremes, stack_categories
from memgate.timeline import Timeline

#: several times as wide as a screen, so that there is something to see when a page zooms in
MAX_POINTS = 6000


class PhaseSpan(BaseModel):
    """A part of an iteration, by its first event and the one after its last."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    phase: str
    begin: int
    end: int


class TimelineView(BaseModel):
    """A memory curve: after each of some events, what was held. Sizes are bytes."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    num_events: int
    peak_event: int
    """The event at which the most was reserved; of several, the one with the most allocated."""
    oom_event: int | None = None
    """The event at which the job dies on this GPU; the curve shows a GPU with enough memory."""
    events: list[int]
    """Which events are shown."""
    reserved: list[int]
    allocated: list[int]
    categories: dict[str, list[int]]
    """Of what is allocated; they add up to it."""
    phases: list[PhaseSpan]
    layers: Layer | None = None
    """What each layer held at the peak, as a tree; None if nothing is known of the blocks."""


def view_timeline(
    timeline: Timeline,
    replayed: Replay,
    *,
    oom_event: int | None = None,
    max_points: int = MAX_POINTS,
) -> TimelineView:
    """Pick what is shown, including the peaks of both curves and where the job dies."""
    allocated = replayed.allocated_series
    reserved = expand_reserved(replayed)
    peak_event = find_peak(replayed)
    keep = [peak_event] if oom_event is None else [peak_event, oom_event]
    events = pick_extremes([allocated, reserved], max_points, keep)
    stacked = stack_categories(timeline, replayed, events) if timeline.labels else {}
    return TimelineView(
        num_events=replayed.num_events,
        peak_event=peak_event,
        oom_event=oom_event,
        events=events,
        reserved=[reserved[at] for at in events],
        allocated=[allocated[at] for at in events],
        categories={category.value: list(series) for category, series in stacked.items()},
        phases=[
            PhaseSpan(phase=phase.value, begin=begin, end=end)
            for phase, begin, end in phase_spans(timeline, replayed.num_events)
        ],
        layers=find_layers(timeline, replayed) if timeline.labels else None,
    )


def thin_view(
    view: TimelineView, *, begin: int = 0, end: int | None = None, max_points: int
) -> TimelineView:
    """Return the part of a view between two events, with no more points than there is room for.

    The nearest event outside on either side is included, so that lines reach the edge. The peaks of
    the part are kept, and so are the job's own peak and its end.
    """
    last = view.num_events if end is None else end
    first_shown = max(0, bisect_right(view.events, begin) - 1)
    end_shown = bisect_left(view.events, last) + 1
    shown = slice(first_shown, end_shown)
    events = view.events[shown]
    marks = [view.peak_event] if view.oom_event is None else [view.peak_event, view.oom_event]
    keep = [bisect_left(events, mark) for mark in marks if mark in events]
    curves = [view.allocated[shown], view.reserved[shown]]
    picked = pick_extremes(curves, max_points, keep)
    return view.model_copy(
        update={
            "events": [events[at] for at in picked],
            "allocated": [curves[0][at] for at in picked],
            "reserved": [curves[1][at] for at in picked],
            "categories": {
                name: [sizes[first_shown + at] for at in picked]
                for name, sizes in view.categories.items()
            },
        }
    )
