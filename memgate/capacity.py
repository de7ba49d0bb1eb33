"""Timeline -> the smallest capacity in which it still runs."""

from __future__ import annotations

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import Replay, replay
from memgate.timeline import Timeline
from memgate.units import MIB

#: a device so large that nothing depends on it
AMPLE_BYTES = 1 << 43

#: segments are multiples of this, and so is what the answer can depend on
_STEP = 2 * MIB


def find_min_capacity(timeline: Timeline, config: AllocatorConfig, ample: Replay) -> int:
    """Search between what was allocated and what was reserved at most in an ample replay.

    Under pressure the allocator gives its cache back and tries again, so less than the peak of
    reserved memory often suffices. Where memory is not monotone (a smaller capacity runs, a larger
    does not) the largest capacity below which nothing was seen to run is kept.
    """

    def runs(steps: int) -> bool:
        return not replay(timeline, config, steps * _STEP).ooms

    # one step below what was allocated at the same time, it cannot run
    low = -(-ample.peak_allocated_bytes // _STEP) - 1
    high = -(-ample.peak_reserved_bytes // _STEP)
    while not runs(high):
        low, high = high, high + max(1, high // 16)
    while high - low > 1:
        middle = (low + high) // 2
        if runs(middle):
            high = middle
        else:
            low = middle
    return high * _STEP
