"""One replay with ample memory stands for every capacity that is enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, replay, survives
from memgate.capacity import MemoryNeeds, is_capacity_felt
from memgate.timeline import Alloc, Free, ResidentSegment, SetFraction, Timeline, TimelineEvent
from memgate.units import KIB, MIB
from tests.builders import mib
from tests.strategies import capacities, settings_strings, timelines

_SIZES = st.one_of(st.integers(1, 64 * KIB), st.integers(1, 40 * MIB))
_CONFS = (
    "",
    "max_split_size_mb:20",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "throw_on_cudamalloc_oom:True",
)


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

    assert survives(timeline, config, capacity) is not bool(replay(timeline, config, capacity).ooms)


def test_with_less_memory_it_is_replayed() -> None:
    """Under pressure the allocator gives its cache back."""
    timeline = Timeline(events=(Alloc(0, mib(60)), Free(0), Alloc(1, mib(80))))
    needs = MemoryNeeds(timeline, parse_alloc_conf(""))

    assert needs.run_in(mib(139)).peak_reserved_bytes == mib(80)
    assert needs.run_in(mib(140)).peak_reserved_bytes == mib(140)


@pytest.mark.parametrize(
    ("conf", "timeline"),
    [
        ("expandable_segments:True", Timeline(events=())),
        ("per_process_memory_fraction:0.5", Timeline(events=())),
        ("", Timeline(events=(SetFraction(0.5),))),
        (
            "",
            Timeline(
                events=(),
                residents=(
                    ResidentSegment(
                        stream=0, is_small=False, is_expandable=False, pieces=((None, mib(2)),)
                    ),
                ),
            ),
        ),
    ],
    ids=["addresses", "share in the settings", "share in the program", "residents"],
)
def test_where_the_capacity_itself_matters_it_is_replayed(conf: str, timeline: Timeline) -> None:
    """However much memory there is."""
    config = parse_alloc_conf(conf)
    needs = MemoryNeeds(timeline, config)

    assert is_capacity_felt(timeline, config)
    assert needs.run_in(1 << 50) is not needs.ample
