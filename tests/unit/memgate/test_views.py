"""What a page shows of a timeline."""

from __future__ import annotations

import pytest

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import replay
from memgate.pipeline import make_timeline
from memgate.rules import Device
from memgate.timeline import Alloc, Category, EmptyCache, Free, Label, Timeline
from memgate.views import view_timeline
from tests.builders import AMPLE, TINY_TRACES, mib, read_tiny_trace


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
    assert view.layers["size_bytes"] == mib(80)
    assert [child["name"] for child in view.layers["children"]] == ["fc"]


def test_without_labels_there_are_curves_only() -> None:
    """A recorded timeline has no layers and no categories."""
    timeline = Timeline(events=(Alloc(0, mib(30)), Free(0)))

    view = view_timeline(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert (view.categories, view.layers) == ({}, {})
    assert view.allocated == [mib(30), 0]


@pytest.mark.parametrize("name", TINY_TRACES)
def test_thinning_keeps_the_peaks(name: str) -> None:
    """Of both curves; categories add up at every event that is shown."""
    timeline = make_timeline(read_tiny_trace(name), Device(compute_capability=(8, 6)))
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
