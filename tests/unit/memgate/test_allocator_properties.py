"""What holds for every timeline, every setting and every device."""

from __future__ import annotations

from hypothesis import given

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.allocators import ALLOCATORS
from memgate.allocator.device import Device
from memgate.allocator.replay import OnOom
from memgate.allocator.sizes import LARGE_BUFFER
from memgate.timeline import Alloc, EmptyCache, EventsPending, Free, SetFraction, Timeline
from tests.builders import apply_event
from tests.cores import replay_on_both
from tests.strategies import capacities, settings_strings, timelines


@given(timelines(), settings_strings, capacities)
def test_the_books_agree_after_every_event(timeline: Timeline, conf: str, capacity: int) -> None:
    """Blocks add up to segments and counters, no free neighbours, device and process agree."""
    for make in ALLOCATORS.values():
        device = Device(capacity_bytes=capacity)
        allocator = make(parse_alloc_conf(conf), device, lambda *_: None)
        live: dict[int, object] = {}
        for event in timeline.events:
            apply_event(allocator, event, live)
            allocator.check_invariants()
            assert device.free_bytes + allocator.stats.all.reserved_bytes == capacity


@given(timelines(), settings_strings, capacities)
def test_freeing_everything_leaves_nothing_allocated(
    timeline: Timeline, conf: str, capacity: int
) -> None:
    """All freed and the cache emptied means all of the device is free again."""
    live = {event.block_id for event in timeline.events if isinstance(event, Alloc)}
    live -= {event.block_id for event in timeline.events if isinstance(event, Free)}
    frees = tuple(Free(block_id) for block_id in sorted(live))
    whole = Timeline(events=(*timeline.events, *frees, EventsPending(0), EmptyCache()))

    run = replay_on_both(whole, parse_alloc_conf(conf), capacity, on_oom=OnOom.CONTINUE)

    assert run.stats.all.allocated_bytes == run.stats.all.reserved_bytes == 0
    assert run.final_segments == ()


@given(timelines(), settings_strings, capacities)
def test_a_replay_repeats_itself(timeline: Timeline, conf: str, capacity: int) -> None:
    """Same input, same output, in everything that is told."""
    runs = [
        replay_on_both(timeline, parse_alloc_conf(conf), capacity, on_oom=OnOom.CONTINUE)
        for _ in range(2)
    ]

    assert runs[0].segment_events == runs[1].segment_events
    assert runs[0].stats.memory_stats() == runs[1].stats.memory_stats()
    assert runs[0].final_segments == runs[1].final_segments
    assert runs[0].ooms == runs[1].ooms


@given(timelines(), settings_strings, capacities)
def test_nobody_gets_more_than_there_is(timeline: Timeline, conf: str, capacity: int) -> None:
    """Reserved never exceeds the device; requested never exceeds allocated plus waiting."""
    run = replay_on_both(timeline, parse_alloc_conf(conf), capacity, on_oom=OnOom.CONTINUE)

    assert run.peak_reserved_bytes <= capacity
    assert run.peak_allocated_bytes <= run.peak_reserved_bytes
    for change in run.reserved_changes:
        assert 0 <= change.reserved_bytes <= capacity


@given(timelines())
def test_an_ample_device_never_runs_out(timeline: Timeline) -> None:
    """Out of memory has one cause, and it is not the allocator's mood."""
    events = tuple(event for event in timeline.events if not isinstance(event, SetFraction))
    total = sum(event.size_bytes + LARGE_BUFFER for event in events if isinstance(event, Alloc))

    run = replay_on_both(Timeline(events=events), parse_alloc_conf(""), total)

    assert run.ooms == ()
    assert run.stats.num_alloc_retries == 0
