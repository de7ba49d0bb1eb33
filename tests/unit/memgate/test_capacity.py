"""One replay with ample memory stands for every capacity that is enough."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, Replayer, replay
from memgate.capacity import MemoryNeeds
from memgate.timeline import Alloc, Free, ResidentSegment, SetFraction, Timeline, TimelineEvent
from memgate.units import KIB, MIB
from tests.builders import mib
from tests.cores import CORES
from tests.strategies import capacities, settings_strings, timelines

_SIZES = st.one_of(st.integers(1, 64 * KIB), st.integers(1, 40 * MIB))
_CONFS = (
    "",
    "max_split_size_mb:20",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "throw_on_cudamalloc_oom:True",
)


@st.composite
def _draw_timelines(draw: st.DrawFn) -> Timeline:
    live: set[int] = set()
    events: list[TimelineEvent] = []
    for block, size in draw(
        st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40 * MIB)), min_size=1, max_size=40)
    ):
        events.append(Free(block) if block in live else Alloc(block, size))
        live ^= {block}
    return Timeline(events=tuple(events), dispensable=frozenset(draw(st.sets(st.integers(0, 9)))))


_TIMELINES = _draw_timelines()


def _figures(run: Replay) -> tuple[object, ...]:
    return (
        run.peak_reserved_bytes,
        run.peak_allocated_bytes,
        run.ooms,
        run.reserved_changes,
        list(run.allocated_series),
        run.final_segments,
    )


@given(
    st.lists(st.tuples(st.integers(0, 12), _SIZES), min_size=1, max_size=60),
    st.integers(0, 64 * MIB),
    st.sampled_from(_CONFS),
)
def test_with_enough_memory_a_replay_is_that_with_ample_memory(
    steps: list[tuple[int, int]], more_bytes: int, conf: str
) -> None:
    """Event by event, down to a capacity that is just enough."""
    live: set[int] = set()
    events: list[TimelineEvent] = []
    for block, size in steps:
        events.append(Free(block) if block in live else Alloc(block, size, block % 2))
        live ^= {block}
    timeline, config = Timeline(events=tuple(events)), parse_alloc_conf(conf)
    needs = MemoryNeeds(timeline, config)
    capacity_bytes = needs.ample.peak_reserved_bytes + more_bytes

    assert needs.run_in(capacity_bytes) is needs.ample
    assert _figures(needs.ample) == _figures(replay(timeline, config, capacity_bytes))


@given(timelines(), settings_strings, capacities)
def test_to_survive_is_to_have_no_failure(timeline: Timeline, conf: str, capacity: int) -> None:
    """The short replay says what the long one says."""
    config = parse_alloc_conf(conf)

    for core in CORES:
        probe = Replayer(timeline, core=core).probe(config, capacity)
        run = replay(timeline, config, capacity, core=core)

        assert probe == (not run.ooms, run.lowest_bytes, run.below_bytes, run.num_events)


def test_with_less_memory_it_is_replayed() -> None:
    """Under pressure the allocator gives its cache back."""
    timeline = Timeline(events=(Alloc(0, mib(60)), Free(0), Alloc(1, mib(80))))
    needs = MemoryNeeds(timeline, parse_alloc_conf(""))

    assert needs.run_in(mib(139)).peak_reserved_bytes == mib(80)
    assert needs.run_in(mib(140)).peak_reserved_bytes == mib(140)


def test_a_capacity_that_was_replayed_is_not_replayed_again() -> None:
    """Nor is one at which it would go the same way."""
    timeline = Timeline(events=(Alloc(0, mib(60)), Free(0), Alloc(1, mib(80))))
    needs = MemoryNeeds(timeline, parse_alloc_conf(""))

    assert needs.run_in(mib(139)) is needs.run_in(mib(81))
    assert needs.run_in(mib(141)) is needs.ample


@pytest.mark.parametrize(
    ("conf", "events"),
    [("per_process_memory_fraction:0.5", ()), ("", (SetFraction(0.5),))],
    ids=["share in the settings", "share in the program"],
)
def test_where_only_a_share_may_be_held_twice_as_much_is_enough(
    conf: str, events: tuple[TimelineEvent, ...]
) -> None:
    """The capacity itself matters, and the window of a replay says so."""
    timeline = Timeline(events=(*events, Alloc(0, mib(60))))
    needs = MemoryNeeds(timeline, parse_alloc_conf(conf))

    assert needs.run_in(mib(120)) is needs.ample
    assert needs.run_in(mib(120) - 2).ooms
    assert needs.least_bytes() == mib(120)


def test_residents_lie_as_they_lay_only_where_there_is_room() -> None:
    """On a smaller device they are asked for one by one: another replay."""
    resident = ResidentSegment(
        stream=0, is_small=False, is_expandable=False, pieces=((0, mib(2)), (None, mib(18)))
    )
    timeline = Timeline(events=(Alloc(0, mib(2)),), residents=(resident,) * 1)
    needs = MemoryNeeds(timeline, parse_alloc_conf("large_segment_size_mb:12"))

    assert needs.run_in(mib(20)) is needs.ample
    assert needs.run_in(mib(19)).peak_reserved_bytes == mib(12)
    assert needs.least_bytes() == mib(12)


_STEP = 2 * MIB
#: above this nothing that is drawn below can matter
_TOP = 800 * MIB


@given(_TIMELINES, settings_strings)
def test_what_is_required_is_what_trying_everything_finds(timeline: Timeline, conf: str) -> None:
    """At every capacity of the grid, down from one that is surely enough; on both cores."""
    config = parse_alloc_conf(conf)
    replayer = Replayer(timeline)
    capacity = _TOP
    assume(replayer.probe(config, capacity).survives)
    while capacity >= _STEP and replayer.probe(config, capacity - _STEP).survives:
        capacity -= _STEP

    for core in CORES:
        needs = MemoryNeeds(timeline, config, core=core)
        assume(not needs.ample.ooms)
        assert needs.required == (capacity, True)


def test_a_search_that_would_take_too_long_is_stopped() -> None:
    """What it has found by then is enough, and the answer says that less may do."""
    events = [event for size in range(1, 40) for event in (Alloc(size, mib(20 * size)), Free(size))]
    timeline, config = Timeline(events=tuple(events)), parse_alloc_conf("")
    exact = MemoryNeeds(timeline, config).required
    stopped = MemoryNeeds(timeline, config, max_events=0).required

    assert exact == (mib(20 * 39), True)
    assert not stopped.is_exact
    assert exact.size_bytes < stopped.size_bytes < mib(sum(range(20, 800, 20)))
    assert not replay(timeline, config, stopped.size_bytes).ooms


def test_what_runs_nowhere_needs_more_than_there_is() -> None:
    """A program that may hold nothing; and one that asks for more than any device has."""
    nothing = Timeline(events=(SetFraction(0.0), Alloc(0, 1)))
    huge = Timeline(events=(Alloc(0, 1 << 45),))

    assert MemoryNeeds(nothing, parse_alloc_conf("")).least_bytes() >= 1 << 59
    assert MemoryNeeds(huge, parse_alloc_conf("")).least_bytes() == 1 << 45
    assert MemoryNeeds(Timeline(events=()), parse_alloc_conf("")).required == (0, True)
