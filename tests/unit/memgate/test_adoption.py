"""Replays that begin with memory that is there, private pools, and streams that are done."""

from __future__ import annotations

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, replay
from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    RecordStream,
    ResidentSegment,
    StreamsDone,
    Timeline,
    TimelineEvent,
)
from memgate.units import GIB
from tests.builders import mib
from tests.cores import replay_on_both

#: 2 MiB in use, 8 free, 4 in use, 6 free
SEGMENT = ResidentSegment(
    0, False, False, ((0, mib(2)), (None, mib(8)), (1, mib(4)), (None, mib(6)))
)
RESIDENTS = (Alloc(0, mib(2) - 5), Alloc(1, mib(4)))


def _run(
    *events: TimelineEvent,
    residents: tuple[ResidentSegment, ...] = (),
    private: frozenset[int] = frozenset(),
    conf: str = "",
    capacity: int = GIB,
    allocator: str = "caching",
) -> Replay:
    timeline = Timeline(events=events, residents=residents, private_streams=private)
    if allocator == "caching":
        return replay_on_both(timeline, parse_alloc_conf(conf), capacity)
    return replay(timeline, parse_alloc_conf(conf), capacity, allocator_name=allocator)


def test_what_is_free_between_residents_is_cached() -> None:
    """The tighter of two gaps serves a request; nothing is asked of the device."""
    run = _run(*RESIDENTS, Alloc(2, mib(6)), Alloc(3, mib(8)), residents=(SEGMENT,))

    assert run.peak_reserved_bytes == mib(20)
    assert list(run.allocated_series) == [mib(2), mib(6), mib(12), mib(20)]


def test_small_residents_are_in_the_small_pool() -> None:
    """Requests of up to 1 MiB find their cache, others do not."""
    small = ResidentSegment(0, True, False, ((0, 512), (None, mib(2) - 512)))
    run = _run(Alloc(0, 7), Alloc(1, mib(1)), Alloc(2, mib(15)), residents=(small,))

    assert run.peak_reserved_bytes == mib(18)


def test_two_stretches_of_one_stream_lie_side_by_side() -> None:
    """The second does not grow over a block at the end of the first."""
    stretches = [ResidentSegment(0, False, True, ((number, mib(20)),)) for number in range(2)]
    events = (Alloc(0, mib(20)), Alloc(1, mib(20)), Free(0), Alloc(2, mib(20)))
    run = _run(*events, residents=tuple(stretches), conf="expandable_segments:True")

    assert list(run.allocated_series) == [mib(20), mib(40), mib(20), mib(40)]
    assert run.peak_reserved_bytes == mib(40)


def test_expandable_residents_of_other_pages_are_asked_for_one_by_one() -> None:
    """They could not lie as they lay: 20 MiB are no number of pages of 32 MiB."""
    stretch = ResidentSegment(0, False, True, ((0, mib(5)), (None, mib(15))))
    conf = "expandable_segments:True,large_segment_size_mb:32"

    assert _run(Alloc(0, mib(5)), residents=(stretch,), conf=conf).peak_reserved_bytes == mib(32)


def test_expandable_residents_grow_on() -> None:
    """As one stretch, of whose end the next request takes what it can."""
    stretch = ResidentSegment(0, False, True, ((0, mib(5)), (None, mib(15))))
    events = (Alloc(0, mib(5)), Alloc(1, mib(30)))
    run = _run(*events, residents=(stretch,), conf="expandable_segments:True")

    assert run.peak_reserved_bytes == mib(40)


@pytest.mark.parametrize(
    ("conf", "capacity", "allocator", "want"),
    [
        ("expandable_segments:True", GIB, "caching", mib(20)),
        ("", mib(20) - 1, "caching", 0),
        ("per_process_memory_fraction:0.01", GIB, "caching", 0),
        ("", GIB, "direct", mib(6)),
    ],
    ids=["other settings", "no room", "not allowed", "an allocator without a cache"],
)
def test_residents_are_asked_for_where_they_cannot_lie_as_they_did(
    conf: str, capacity: int, allocator: str, want: int
) -> None:
    """One by one, like any other request."""
    run = _run(*RESIDENTS, residents=(SEGMENT,), conf=conf, capacity=capacity, allocator=allocator)

    assert run.peak_reserved_bytes == want
    assert (run.oom is None) == bool(want)


def test_a_private_pool_keeps_its_cache_until_its_end() -> None:
    """Neither pressure nor ``empty_cache`` gives it back."""
    events = (Alloc(0, mib(40), 3), Free(0), Alloc(1, mib(30)), Free(1), EmptyCache())

    kept = _run(*events, private=frozenset({3}))
    ended = _run(*events[:-1], EmptyCache(3), private=frozenset({3}))
    died = _run(*events, Alloc(2, mib(40)), private=frozenset({3}), capacity=mib(75))

    assert kept.reserved_changes[-1].reserved_bytes == mib(40)
    assert ended.reserved_changes[-1].reserved_bytes == mib(30)
    assert died.oom is not None


def test_a_block_is_reusable_when_the_streams_are_done_with_it() -> None:
    """Not before; its neighbours in time wait on."""
    before = (
        *(EventsPending(1), Alloc(0, mib(30)), Alloc(1, mib(30))),
        *(RecordStream(0, 5), RecordStream(1, 5), Free(0), Free(1)),
    )

    waits = _run(*before, Alloc(2, mib(30)))
    done = _run(*before, StreamsDone(0), Alloc(2, mib(30)), StreamsDone(1))
    direct = _run(*before, StreamsDone(0), allocator="direct")

    assert (waits.peak_reserved_bytes, done.peak_reserved_bytes) == (mib(90), mib(60))
    assert done.active_series[-1] == mib(30)
    assert direct.active_series[-1] == 0


def test_a_wait_that_pressure_ended_is_not_ended_again() -> None:
    """The block may be another one's by then, which waits for itself."""
    events = (
        *(EventsPending(1), Alloc(0, mib(30)), RecordStream(0, 5), Free(0)),
        *(EmptyCache(), StreamsDone(0)),
        *(Alloc(1, mib(30)), RecordStream(1, 5), Free(1), StreamsDone(7)),
        *(Alloc(2, 0), RecordStream(2, 5), Free(2), StreamsDone(2)),
    )
    run = _run(*events)

    assert run.active_series[-1] == mib(30)


def test_a_block_that_has_become_anothers_is_left_alone() -> None:
    """Freed under pressure, handed out again, and waited for again."""
    events = (
        *(Alloc(9, 512), EventsPending(1), Alloc(0, mib(30)), RecordStream(0, 5), Free(0)),
        *(EventsPending(0), Alloc(1, mib(30)), EventsPending(1)),
        *(RecordStream(1, 5), Free(1), StreamsDone(0), StreamsDone(1)),
    )
    run = _run(*events)

    assert run.active_series[-2] == mib(30) + 512
    assert run.active_series[-1] == 512
