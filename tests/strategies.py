"""Hypothesis strategies shared by property tests."""

from __future__ import annotations

from hypothesis import strategies as st

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
