"""What each category held after each event, and what of it a picture shows."""

from __future__ import annotations

import pytest

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import OnOom, replay
from memgate.pipeline import analyze
from memgate.plan import DeviceTraits
from memgate.stacks import phase_spans, pick_events, stack_categories
from memgate.timeline import (
    Alloc,
    Category,
    EmptyCache,
    Free,
    Label,
    Phase,
    PhaseStart,
    RecordStream,
    Timeline,
    make_phases,
)
from tests.builders import AMPLE, TINY_TRACES, mib, read_tiny_trace

PARAMETERS, ACTIVATIONS = Label(Category.PARAMETERS, ""), Label(Category.ACTIVATIONS, "")


def test_categories_come_and_go_with_their_blocks() -> None:
    """Rounding is the block's own; a category that never holds anything is left out."""
    timeline = Timeline(
        events=(Alloc(0, 100), Alloc(1, 1000), RecordStream(1, 5), Free(1), EmptyCache(), Free(0)),
        labels=(PARAMETERS, ACTIVATIONS),
    )

    found = stack_categories(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert {category: list(sizes) for category, sizes in found.items()} == {
        Category.PARAMETERS: [512, 512, 512, 512, 512, 0],
        Category.ACTIVATIONS: [0, 1024, 1024, 0, 0, 0],
    }


def test_a_request_that_failed_holds_nothing() -> None:
    """Nor does its free give anything back; where the program died, the series ends."""
    timeline = Timeline(
        events=(Alloc(0, mib(30)), Alloc(1, mib(90)), Free(1)), labels=(PARAMETERS, ACTIVATIONS)
    )
    went_on = replay(timeline, AllocatorConfig(), mib(100), on_oom=OnOom.CONTINUE)
    died = replay(timeline, AllocatorConfig(), mib(100))

    assert list(stack_categories(timeline, went_on)) == [Category.PARAMETERS]
    assert list(stack_categories(timeline, died)[Category.PARAMETERS]) == [mib(30)] * 2


@pytest.mark.parametrize("name", TINY_TRACES)
def test_categories_of_a_real_trace_add_up(name: str) -> None:
    """To what is allocated, at every event."""
    timeline = analyze(read_tiny_trace(name), DeviceTraits(compute_capability=(8, 6))).timeline
    run = replay(timeline, AllocatorConfig(), AMPLE)

    found = stack_categories(timeline, run)

    assert set(found) == set(Category) - {Category.OTHER}
    assert [sum(sizes) for sizes in zip(*found.values(), strict=True)] == list(run.allocated_series)


def test_all_events_are_shown_where_there_is_room() -> None:
    """None, one, as many as fit."""
    assert pick_events([], 10) == []
    assert pick_events([7, 7, 7], 3) == [0, 1, 2]


@pytest.mark.parametrize("most", [2, 10, 99])
def test_no_peak_is_lost_where_there_is_not(most: int) -> None:
    """The least and the most of each stretch, the first and the last event."""
    sizes = [number * 37 % 101 for number in range(1000)]
    sizes[567] = 5000

    shown = pick_events(sizes, most)

    assert {0, 567, 999} <= set(shown)
    assert shown == sorted(set(shown))
    assert len(shown) <= max(most, 4)


def test_phases_without_an_event_of_their_own_are_left_out() -> None:
    """What follows itself is one phase; what begins after the last event is none."""
    starts = [
        PhaseStart(0, Phase.BETWEEN),
        PhaseStart(2, Phase.FORWARD),
        PhaseStart(2, Phase.BETWEEN),
        PhaseStart(4, Phase.FORWARD),
        PhaseStart(6, Phase.FORWARD),
        PhaseStart(9, Phase.BACKWARD),
    ]

    assert make_phases(starts, 9) == (PhaseStart(0, Phase.BETWEEN), PhaseStart(4, Phase.FORWARD))
    assert make_phases([], 9) == ()


def test_a_phase_ends_where_the_next_begins_or_the_program_dies() -> None:
    """Without phases there are no spans."""
    phases = (PhaseStart(0, Phase.BETWEEN), PhaseStart(4, Phase.FORWARD))
    timeline = Timeline(events=(), phases=phases)

    assert list(phase_spans(timeline, 6)) == [(Phase.BETWEEN, 0, 4), (Phase.FORWARD, 4, 6)]
    assert list(phase_spans(timeline, 3)) == [(Phase.BETWEEN, 0, 3)]
    assert list(phase_spans(Timeline(events=()), 6)) == []
