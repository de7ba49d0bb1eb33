"""The cost of an event may grow with the logarithm of the live blocks, not faster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Core, replay
from memgate.timeline import Alloc, EmptyCache, Free, Timeline
from tests.bench.allocator import AMPLE, random_timeline, seconds_per_event
from tests.builders import mib
from tests.cores import CORES


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_ten_times_the_blocks_do_not_double_the_cost_of_an_event(conf: str, core: Core) -> None:
    """A ratio within one run: logarithmic growth would be 1.26, linear 10."""
    small, large = random_timeline(8_000), random_timeline(80_000)

    # measured in turn, so that a busy machine slows both
    ratios = [_growth(small, large, conf, core) for _ in range(5)]

    assert min(ratios) < 2.0


def _growth(small: Timeline, large: Timeline, conf: str, core: Core) -> float:
    of_large = seconds_per_event(large, conf, core=core)
    return of_large / seconds_per_event(small, conf, core=core)


def _cached_segments(count: int) -> Timeline:
    """Leave many free segments behind, then ask for sizes that none of them serves."""
    first = [Alloc(number, mib(11)) for number in range(count)]
    frees = [Free(number) for number in range(count)]
    more = [Alloc(count + number, mib(12)) for number in range(count // 10)]
    return Timeline(events=(*first, *frees, *more))


def _holes(count: int) -> Timeline:
    """Punch many holes into an expandable segment, then fill them again."""
    first = [Alloc(number, mib(20)) for number in range(count)]
    frees = [Free(number) for number in range(0, count, 2)]
    more = [Alloc(count + number, mib(20)) for number in range(count // 2)]
    return Timeline(events=(*first, *frees, EmptyCache(), *more))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("make", "conf"),
    [
        (_cached_segments, "garbage_collection_threshold:0.9,per_process_memory_fraction:0.99"),
        (_holes, "expandable_segments:True"),
    ],
    ids=["garbage collection below its threshold", "holes in an expandable segment"],
)
def test_waiting_memory_does_not_slow_down_requests(
    make: Callable[[int], Timeline], conf: str, core: Core
) -> None:
    """What is cached or empty is not walked through at every request."""
    assert not replay(make(100), parse_alloc_conf(conf), AMPLE).ooms
    small, large = make(1_000), make(10_000)

    ratios = [_growth(small, large, conf, core) for _ in range(5)]

    assert min(ratios) < 2.0
