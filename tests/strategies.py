"""Hypothesis strategies shared by property tests."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    RecordStream,
    ResidentSegment,
    SetFraction,
    StreamsDone,
    Timeline,
    TimelineEvent,
)
from memgate.units import MIB

#: sizes around every border of the allocator's rules, and everything between
sizes = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 24 * MIB),
    st.integers(10 * MIB, 200 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 20 * MIB]),
)

settings_strings = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "expandable_segments:True,large_segment_size_mb:32,max_split_size_mb:48",
        "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
        "large_segment_size_mb:12",
        "max_split_size_mb:20",
        "max_split_size_mb:32,max_non_split_rounding_mb:64",
        "per_process_memory_fraction:0.5",
        "roundup_power2_divisions:[1:8,64:2,>:4]",
        "throw_on_cudamalloc_oom:True",
    ]
)

capacities = st.sampled_from([0, 30 * MIB, 100 * MIB, 400 * MIB, 1 << 40])


@st.composite
def timelines(draw: st.DrawFn, max_events: int = 120) -> Timeline:
    """Draw a timeline that a program could make: frees and records are of live ids only."""
    events: list[TimelineEvent] = []
    live: list[int] = []
    for block_id in range(draw(st.integers(0, max_events))):
        kind = draw(st.integers(0, 19))
        if kind < 9 or not live:
            events.append(Alloc(block_id, draw(sizes), draw(st.integers(0, 2))))
            live.append(block_id)
        elif kind < 15:
            events.append(Free(live.pop(draw(st.integers(0, len(live) - 1)))))
        elif kind < 17:
            events.append(RecordStream(draw(st.sampled_from(live)), draw(st.integers(0, 4))))
        elif kind == 17:
            events.append(EventsPending(draw(st.sampled_from([0, 1]))))
        elif kind == 18:
            events.append(SetFraction(draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))))
        else:
            events.append(EmptyCache())
    return Timeline(events=tuple(events))


@st.composite
def residents(draw: st.DrawFn, *, is_expandable: bool) -> tuple[ResidentSegment, ...]:
    """Draw segments that were there before; ids of blocks in them are negative."""
    segments = []
    block_id = 0
    for _ in range(draw(st.integers(0, 3))):
        is_small = draw(st.booleans())
        total = 2 * MIB if is_small else 20 * MIB
        cuts = draw(st.lists(st.integers(1, total // 512 - 1), max_size=4, unique=True))
        bounds = [0, *sorted(cut * 512 for cut in cuts), total]
        pieces: list[tuple[int | None, int]] = []
        for begin, end in pairwise(bounds):
            was_free = bool(pieces) and pieces[-1][0] is None
            block_id -= 1
            is_free = not was_free and draw(st.booleans())
            pieces.append((None if is_free else block_id, end - begin))
        segments.append(
            ResidentSegment(
                stream=draw(st.integers(0, 2)),
                is_small=is_small,
                is_expandable=is_expandable,
                pieces=tuple(pieces),
            )
        )
    return tuple(segments)


@st.composite
def whole_timelines(draw: st.DrawFn, *, is_expandable: bool = False) -> Timeline:
    """Draw a timeline with everything that one can have."""
    events = list(draw(timelines()).events)
    segments = draw(residents(is_expandable=is_expandable))
    before = [
        Alloc(block_id, draw(st.integers(1, size)), segment.stream)
        for segment in segments
        for block_id, size in segment.pieces
        if block_id is not None
    ]
    for event in list(events):
        if isinstance(event, RecordStream) and draw(st.booleans()):
            at = draw(st.integers(events.index(event) + 1, len(events)))
            events.insert(at, StreamsDone(event.block_id))
        if isinstance(event, EmptyCache) and draw(st.booleans()):
            events[events.index(event)] = EmptyCache(draw(st.integers(0, 2)))
    ids = [event.block_id for event in events if isinstance(event, Alloc)]
    return Timeline(
        events=(*before, *events),
        residents=segments,
        dispensable=frozenset(ids[:: draw(st.integers(1, 9))])
        if draw(st.booleans())
        else frozenset(),
        private_streams=draw(st.frozensets(st.integers(0, 2), max_size=2)),
    )
