"""Stage 5: Timeline, Replay -> what held the memory at the peak, by category."""

from __future__ import annotations

from itertools import pairwise

from memgate.allocator.replay import Replay
from memgate.timeline import Alloc, Category, Free, Timeline


def find_peak(replayed: Replay) -> int:
    """Return the event of the peak: most reserved, and of those events the most allocated."""
    peak = replayed.peak_reserved_bytes
    changes = [*replayed.reserved_changes, None]
    best, best_allocated = 0, -1
    for change, following in pairwise(changes):
        if change is None or change.reserved_bytes != peak:
            continue
        end = following.event_index if following is not None else replayed.num_events
        allocated = replayed.allocated_series[change.event_index : end]
        if not allocated:  # nothing ever happens: what is reserved was there before
            continue
        if (most := max(allocated)) > best_allocated:
            best, best_allocated = change.event_index + allocated.index(most), most
    return best


def live_blocks_at_peak(timeline: Timeline, replayed: Replay) -> dict[int, int]:
    """Return the size of each block that was there at the peak, by id."""
    sizes: dict[int, int] = {}
    for event in timeline.events[: find_peak(replayed) + 1]:
        if isinstance(event, Alloc):
            sizes[event.block_id] = event.size_bytes
        elif isinstance(event, Free):
            del sizes[event.block_id]
    for oom in replayed.ooms:  # a request that failed holds nothing
        failed = timeline.events[oom.event_index]
        assert isinstance(failed, Alloc)
        sizes.pop(failed.block_id, None)
    return sizes


def break_down(timeline: Timeline, replayed: Replay) -> dict[str, int]:
    """Return bytes by category at the peak; what no block asked for is fragmentation.

    The sum is the peak of reserved memory.
    """
    sizes = live_blocks_at_peak(timeline, replayed)
    totals = {category.value: 0 for category in Category}
    for block_id, size in sizes.items():
        category = timeline.labels[block_id].category if timeline.labels else Category.OTHER
        totals[category.value] += size
    if not totals[Category.OTHER.value]:  # only of snapshots: other engines know what is what
        del totals[Category.OTHER.value]
    totals["fragmentation"] = replayed.peak_reserved_bytes - sum(totals.values())
    return totals
