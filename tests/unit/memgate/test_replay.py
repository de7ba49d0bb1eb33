"""Feeding a timeline to an allocator."""

from __future__ import annotations

import pytest

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import OnOom, ReservedChange, replay
from memgate.errors import InputError, TimelineError
from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    RecordStream,
    SetFraction,
    Timeline,
    TimelineEvent,
)
from tests.builders import AMPLE, make_replay, mib


def test_an_empty_timeline_does_nothing() -> None:
    """No events, no memory."""
    run = replay(Timeline(events=()), AllocatorConfig(), AMPLE)

    assert (run.num_events, run.peak_reserved_bytes, run.oom) == (0, 0, None)


def test_the_curves_have_a_point_for_each_event() -> None:
    """Allocated is known after every event, reserved at each change."""
    run = make_replay(Alloc(1, mib(30)), Alloc(2, 512), Free(1), EmptyCache())

    assert list(run.allocated_series) == [mib(30), mib(30) + 512, 512, 512]
    assert run.reserved_changes == (
        ReservedChange(0, mib(30)),
        ReservedChange(1, mib(32)),
        ReservedChange(3, mib(2)),
    )
    assert (run.peak_allocated_bytes, run.peak_reserved_bytes) == (mib(30) + 512, mib(32))


def test_changes_that_cancel_at_one_event_are_no_change() -> None:
    """A segment given back for another of the same size leaves the curve level."""
    run = make_replay(Alloc(1, mib(60), 0), Free(1), Alloc(2, mib(60), 1), capacity=mib(100))

    assert len(run.segment_events) == 3
    assert run.reserved_changes == (ReservedChange(0, mib(60)),)


def test_zero_bytes_touch_nothing() -> None:
    """PyTorch never asks its allocator for zero bytes; the id may be freed and recorded."""
    run = make_replay(Alloc(1, 0), RecordStream(1, 3), Free(1))

    assert run.peak_reserved_bytes == 0
    assert run.stats.all.peak_allocation == 0


def test_a_block_that_can_be_done_without_kills_nobody() -> None:
    """PyTorch catches the error for a cuDNN workspace and goes on with a plan that wants none."""
    events = (Alloc(1, mib(60)), Alloc(2, mib(60)), Free(2), Alloc(3, mib(20)))
    timeline = Timeline(events=events, dispensable=frozenset({2}))

    run = replay(timeline, AllocatorConfig(), mib(100))

    assert (run.oom, run.num_events, run.peak_reserved_bytes) == (None, 4, mib(80))


def test_a_program_that_dies_makes_no_more_events() -> None:
    """After out of memory the rest of the timeline never happens."""
    run = make_replay(Alloc(1, mib(50)), Alloc(2, mib(80)), Free(1), capacity=mib(100))

    assert run.num_events == 2
    assert run.oom is not None
    assert run.oom.event_index == 1
    assert run.oom.details.tried_bytes == mib(80)


def test_a_program_that_survives_goes_on_without_the_block() -> None:
    """A failed id may be freed later, which does nothing."""
    run = make_replay(
        Alloc(1, mib(50)),
        Alloc(2, mib(80)),
        RecordStream(2, 1),
        Free(2),
        Free(1),
        capacity=mib(100),
        on_oom=OnOom.CONTINUE,
    )

    assert run.num_events == 5
    assert [oom.event_index for oom in run.ooms] == [1]
    assert run.stats.all.allocated_bytes == 0


def test_an_id_whose_request_failed_may_be_used_again() -> None:
    """It never lived: a program may try again under the same id, and free it twice."""
    run = make_replay(
        Alloc(1, mib(200)),
        Free(1),
        Alloc(1, mib(50)),
        Free(1),
        Free(1),
        capacity=mib(100),
        on_oom=OnOom.CONTINUE,
    )

    assert run.peak_allocated_bytes == mib(50)


def test_rare_events_reach_the_allocator() -> None:
    """Streams, events and fractions do what they do in PyTorch."""
    run = make_replay(
        SetFraction(0.5),
        Alloc(1, mib(30), 1),
        RecordStream(1, 2),
        EventsPending(1),
        Free(1),
        Alloc(2, mib(30), 1),
        EventsPending(0),
        Alloc(3, mib(30), 1),
        Alloc(4, mib(30), 1),
        capacity=mib(130),
    )

    assert list(run.active_series) == [mib(30 * n) for n in (0, 1, 1, 1, 1, 2, 2, 2, 2)]
    assert run.oom is not None
    assert run.oom.details.allowed_bytes == mib(65)


@pytest.mark.parametrize(
    ("events", "want_message"),
    [
        pytest.param([Free(7)], "event 0, Free(block_id=7): id 7 is not allocated", id="free"),
        pytest.param(
            [Alloc(7, 1), Free(7), Free(7)],
            "event 2, Free(block_id=7): id 7 is not allocated",
            id="double free",
        ),
        pytest.param(
            [Alloc(7, 1), Alloc(7, 1)],
            "event 1, Alloc(block_id=7, size_bytes=1, stream=0): id 7 is already allocated",
            id="id used twice",
        ),
        pytest.param(
            [RecordStream(7, 1)],
            "event 0, RecordStream(block_id=7, stream=1): id 7 is not allocated",
            id="record",
        ),
    ],
)
def test_events_that_no_program_makes_are_refused(
    events: list[TimelineEvent], want_message: str
) -> None:
    """The message names the event, its place and what is wrong with it."""
    with pytest.raises(TimelineError) as raised:
        make_replay(*events)

    assert raised.value.message == want_message


def test_an_unknown_allocator_is_answered_with_the_known_ones() -> None:
    """Allocators are chosen by name."""
    with pytest.raises(
        InputError, match="'buddy': there is no such allocator; there are: caching, direct"
    ):
        make_replay(allocator_name="buddy")
