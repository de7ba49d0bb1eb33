"""What a job keeps at the end of each step -> by how much that grows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from memgate.allocator.sizes import MIN_BLOCK_SIZE
from memgate.timeline import Alloc, Free
from memgate_worker.engines.messages import RecordedRun

#: the steps after which a job has all that it keeps
_FIRST_STEPS = 3

#: what is kept more often than that grows
_FEW_RISES = 3


def kept_at_steps(run: RecordedRun) -> list[int]:
    """Return what is allocated at the end of each step: the same point of each."""
    totals, sizes = [0], dict[int, int]()
    for event in run.events:
        change = 0
        if isinstance(event, Alloc):
            # a number takes a whole block
            change = -(-event.size_bytes // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
            sizes[event.block_id] = change
        elif isinstance(event, Free):
            change = -sizes.pop(event.block_id)
        totals.append(totals[-1] + change)
    return [totals[index] for index in run.steps]


def find_growth(kept: Sequence[int]) -> int:
    """Return by how much more a job keeps with each step, on average; 0 if it does not.

    What is kept must never become less, and still grow in the second half of the steps.
    """
    rises = [after - before for before, after in pairwise(kept[_FIRST_STEPS:])]
    num_late_rises = sum(rise > 0 for rise in rises[len(rises) // 2 :])
    num_rises = sum(rise > 0 for rise in rises)
    if num_rises <= _FEW_RISES or num_late_rises < 2 or min(rises) < 0:
        return 0
    return sum(rises) // len(rises)
