"""Stage 5: Timeline -> the smallest capacity in which it still runs."""

from __future__ import annotations

from functools import cached_property

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import Replay, replay, survives
from memgate.timeline import SetFraction, Timeline
from memgate.units import MIB

#: a device so large that nothing depends on it
AMPLE_BYTES = 1 << 43

#: segments are multiples of this, and so is what the answer can depend on
_STEP = 2 * MIB


#: capacities that are tried from the top down before the search
_NUM_TRIED = 4


class MemoryNeeds:
    """What a timeline needs under some allocator settings: replayed once, asked for many GPUs."""

    def __init__(self, timeline: Timeline, config: AllocatorConfig) -> None:
        self._timeline = timeline
        self._config = config
        self._least_bytes: dict[int, int] = {}

    @cached_property
    def ample(self) -> Replay:
        """What it would do with unlimited memory."""
        return replay(self._timeline, self._config, AMPLE_BYTES)

    def run_in(self, capacity_bytes: int) -> Replay:
        """Return what it does on a device: with enough memory, what it does with ample memory."""
        is_enough = capacity_bytes >= self.ample.peak_reserved_bytes
        if is_enough and not is_capacity_felt(self._timeline, self._config):
            return self.ample
        return replay(self._timeline, self._config, capacity_bytes)

    def least_bytes(self, *, died_at_bytes: int = 0) -> int:
        """Return the smallest capacity in which it runs, see ``find_min_capacity``."""
        if died_at_bytes not in self._least_bytes:
            self._least_bytes[died_at_bytes] = find_min_capacity(
                self._timeline, self._config, self.ample, died_at_bytes=died_at_bytes
            )
        return self._least_bytes[died_at_bytes]


def is_capacity_felt(timeline: Timeline, config: AllocatorConfig) -> bool:
    """Say whether the capacity of a device can matter although there is enough memory.

    A share of it is a limit, expandable segments take addresses for all of it, and what was there
    before the first event lies as it lay only where there is room.
    """
    return (
        config.expandable_segments
        or config.per_process_memory_fraction < 1.0
        or bool(timeline.residents)
        or any(type(event) is SetFraction for event in timeline.events)
    )


def find_min_capacity(
    timeline: Timeline, config: AllocatorConfig, ample: Replay, *, died_at_bytes: int = 0
) -> int:
    """Search between the peak reserved in a replay with ample memory and the peak allocated.

    Under pressure the allocator gives its cache back and tries again, so less than the peak of
    reserved memory often suffices. But a little less pressure may be worse: the cache is given
    back later, and lies in pieces. So a job may survive at some capacity by luck and die at larger
    ones. A GPU's capacity is fixed, so what is returned does not depend on luck: at all larger
    capacities that were tried, from the top down, the job survives. ``died_at_bytes`` is a capacity
    in which it is known to die.
    """

    def runs(steps: int) -> bool:
        return survives(timeline, config, steps * _STEP)

    # one step below what was allocated at the same time, it cannot run
    low = max(-(-ample.peak_allocated_bytes // _STEP) - 1, died_at_bytes // _STEP)
    high = max(-(-ample.peak_reserved_bytes // _STEP), low + 1)
    is_known = not ample.ooms and not is_capacity_felt(timeline, config)
    while not is_known and not runs(high):
        low, high = high, high + max(1, high // 16)
    for steps in _downwards(high, low):
        if not runs(steps):
            low = steps
            break
        high = steps
    while high - low > 1:
        middle = (low + high) // 2
        if runs(middle):
            high = middle
        else:
            low = middle
    return high * _STEP


def _downwards(high: int, low: int) -> list[int]:
    """Return some capacities between two others: one right below the larger, the rest spread."""
    spread = {high - (high - low) * part // _NUM_TRIED for part in range(1, _NUM_TRIED)}
    return sorted(({high - 1} | spread) - {high, low}, reverse=True)
