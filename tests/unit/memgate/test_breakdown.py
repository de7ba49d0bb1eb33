"""What held the memory at the peak."""

from __future__ import annotations

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import OnOom, replay
from memgate.breakdown import break_down, find_peak
from memgate.timeline import Alloc, Category, EmptyCache, Free, Label, Timeline
from tests.builders import AMPLE, mib

LABELS = (
    Label(Category.PARAMETERS, "fc"),
    Label(Category.ACTIVATIONS, "fc"),
    Label(Category.TEMPORARY, ""),
    Label(Category.GRADIENTS, "fc"),
)


def test_the_peak_is_the_fullest_event_of_the_most_reserved() -> None:
    """Reserved stays level for long; what matters is when most of it was in use."""
    timeline = Timeline(
        events=(
            Alloc(0, mib(30)),
            Alloc(1, mib(40)),
            Free(1),
            Alloc(2, mib(20)),
            Free(2),
            EmptyCache(),
            Alloc(3, mib(10)),
        ),
        labels=LABELS,
    )
    run = replay(timeline, AllocatorConfig(), AMPLE)

    assert find_peak(run) == 1
    assert break_down(timeline, run) == {
        "parameters": mib(30),
        "gradients": 0,
        "optimizer_state": 0,
        "activations": mib(40),
        "batch": 0,
        "temporary": 0,
        "workspace": 0,
        "fragmentation": 0,
    }


def test_what_nobody_asked_for_is_fragmentation() -> None:
    """Rounding and unused parts of segments make up the difference to what is reserved."""
    timeline = Timeline(events=(Alloc(0, 100), EmptyCache(), Alloc(1, mib(15))), labels=LABELS)

    found = break_down(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert found["fragmentation"] == mib(2) - 100 + mib(1)
    assert sum(found.values()) == mib(18)


def test_a_request_that_failed_holds_nothing() -> None:
    """On a device that is too small the peak is what was there."""
    timeline = Timeline(events=(Alloc(0, mib(30)), Alloc(1, mib(90))), labels=LABELS)
    run = replay(timeline, AllocatorConfig(), mib(100), on_oom=OnOom.CONTINUE)

    assert break_down(timeline, run)["activations"] == 0


def test_nothing_at_all_breaks_down_to_nothing() -> None:
    """A job that never allocates has no peak."""
    timeline = Timeline(events=())

    assert set(break_down(timeline, replay(timeline, AllocatorConfig(), AMPLE)).values()) == {0}


def test_blocks_without_labels_are_other() -> None:
    """A recording may know nothing but sizes."""
    timeline = Timeline(events=(Alloc(0, mib(20)),))

    assert break_down(timeline, replay(timeline, AllocatorConfig(), AMPLE))["other"] == mib(20)


def test_of_two_times_with_the_most_reserved_the_one_with_more_allocated_counts() -> None:
    """The cache was given back in between."""
    events = (
        *(Alloc(0, mib(30)), Free(0), EmptyCache()),
        *(Alloc(1, mib(20)), Alloc(0, mib(10)), Free(0), Free(1), EmptyCache()),
        *(Alloc(1, mib(29) + 1),),
    )
    timeline = Timeline(events=events)
    run = replay(timeline, AllocatorConfig(), AMPLE)

    assert run.peak_reserved_bytes == mib(30)
    assert find_peak(run) == 0
