"""What a page shows of a timeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import OnOom, replay
from memgate.pipeline import analyze
from memgate.plan import DeviceTraits
from memgate.timeline import Alloc, Category, EmptyCache, Free, Label, Timeline
from memgate.views import thin_view, view_timeline
from tests.builders import AMPLE, TINY_TRACES, mib, read_tiny_trace
from tests.strategies import timelines


def test_nothing_is_shown_of_nothing() -> None:
    """An empty timeline is a picture, too."""
    timeline = Timeline(events=())

    view = view_timeline(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert (view.num_events, view.peak_event, view.events) == (0, 0, [])
    assert (view.reserved, view.allocated, view.phases) == ([], [], [])


def test_each_event_has_what_was_held_after_it() -> None:
    """Segments stay until the cache is emptied; blocks go when they are freed."""
    timeline = Timeline(
        events=(Alloc(0, mib(30)), Alloc(1, mib(50)), Free(1), EmptyCache(), Free(0)),
        labels=(Label(Category.PARAMETERS, "fc.weight"), Label(Category.ACTIVATIONS, "fc")),
    )

    view = view_timeline(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert view.events == [0, 1, 2, 3, 4]
    assert view.peak_event == 1
    assert view.reserved == [mib(30), mib(80), mib(80), mib(30), mib(30)]
    assert view.allocated == [mib(30), mib(80), mib(30), mib(30), 0]
    assert view.categories == {
        "parameters": [mib(30), mib(30), mib(30), mib(30), 0],
        "activations": [0, mib(50), 0, 0, 0],
    }
    assert view.layers is not None
    assert view.layers.size_bytes == mib(80)
    assert [child.name for child in view.layers.children] == ["fc"]


def test_without_labels_there_are_curves_only() -> None:
    """A recorded timeline has no layers and no categories."""
    timeline = Timeline(events=(Alloc(0, mib(30)), Free(0)))

    view = view_timeline(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert (view.categories, view.layers) == ({}, None)
    assert view.allocated == [mib(30), 0]


@pytest.mark.parametrize("name", TINY_TRACES)
def test_thinning_keeps_the_peaks(name: str) -> None:
    """Of both curves; categories add up at every event that is shown."""
    timeline = analyze(read_tiny_trace(name), DeviceTraits(compute_capability=(8, 6))).timeline
    run = replay(timeline, AllocatorConfig(), AMPLE)

    view = view_timeline(timeline, run, max_points=20)

    assert len(view.events) <= 21
    assert view.num_events == run.num_events > 21
    assert max(view.allocated) == run.peak_allocated_bytes
    assert max(view.reserved) == run.peak_reserved_bytes
    assert view.reserved[view.events.index(view.peak_event)] == run.peak_reserved_bytes
    assert view.phases[-1].end == run.num_events
    for at, allocated in enumerate(view.allocated):
        assert sum(sizes[at] for sizes in view.categories.values()) == allocated


def test_the_peak_is_where_most_of_what_is_reserved_is_in_use() -> None:
    """Reserved memory stays at its peak for long; what fills it tells what the peak is made of."""
    timeline = Timeline(
        events=(Alloc(0, mib(30)), Free(0), Alloc(1, mib(50)), Alloc(2, mib(30)), Free(2)),
    )

    view = view_timeline(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert view.reserved == [mib(30), mib(30), mib(80), mib(80), mib(80)]
    assert view.peak_event == 3


@given(timelines(), st.integers(4, 40), st.data())
def test_no_thinning_loses_the_peak_or_the_end(
    timeline: Timeline, room: int, data: st.DataObject
) -> None:
    """Whatever the curve: the peaks of both, the marked peak and where the job dies are shown."""
    run = replay(timeline, AllocatorConfig(), AMPLE, on_oom=OnOom.CONTINUE)
    oom = data.draw(st.none() | st.integers(0, max(0, run.num_events - 1)))

    kept = view_timeline(timeline, run, oom_event=oom, max_points=60)
    view = thin_view(kept, max_points=room)

    assert len(view.events) <= max(room, 6) + 4
    if run.num_events:
        assert max(view.reserved) == run.peak_reserved_bytes
        assert max(view.allocated) == run.peak_allocated_bytes
        assert view.peak_event in view.events
        assert oom is None or oom in view.events


def test_a_long_curve_keeps_a_spike_of_one_event() -> None:
    """200,000 events on 2,000 points: the one that matters is there, and the one that kills."""
    spike, dies = 123_457, 123_001
    events: list[Alloc | Free] = []
    for number in range(100_000):
        size = mib(900) if 2 * number == spike - 1 else mib(1)
        events += [Alloc(number, size), Free(number)]
    timeline = Timeline(events=tuple(events))
    run = replay(timeline, AllocatorConfig(), AMPLE)

    view = thin_view(view_timeline(timeline, run, oom_event=dies), max_points=2000)

    assert view.num_events == 200_000
    assert len(view.events) <= 2000
    assert view.peak_event == spike - 1
    assert view.allocated[view.events.index(spike - 1)] == run.peak_allocated_bytes == mib(900)
    assert max(view.reserved) == run.peak_reserved_bytes
    assert dies in view.events


def test_a_part_of_a_curve_reaches_beyond_its_edges() -> None:
    """So that lines do not end before the chart does; more points fit than before."""
    timeline = Timeline(
        events=tuple(event for n in range(500) for event in (Alloc(n, mib(n % 7 + 1)), Free(n))),
        labels=tuple(Label(Category.ACTIVATIONS, "fc") for _ in range(500)),
    )
    whole = view_timeline(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    part = thin_view(whole, begin=100, end=200, max_points=1000)
    coarse = thin_view(whole, max_points=40)

    assert part.events == list(range(100, 201))
    assert part.allocated == whole.allocated[100:201]
    assert part.categories == {"activations": part.allocated}
    assert len([event for event in coarse.events if 100 <= event <= 200]) < 20
    assert thin_view(whole, begin=5000, max_points=40).events == [999]
