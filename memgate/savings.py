"""A decision, and whether it was right -> memory saved, as the VeritasEst paper counts it.

The paper runs each job twice: on the whole device, and capped at what the estimator said. A right
verdict saves what the cap leaves free, or the whole device if the job would have died on it; a
wrong one wastes the whole device. Our cap is the upper bound: what an admitted job is promised to
live in.
"""

from __future__ import annotations

from memgate.decision import Decision


def memory_saved(
    decision: str, *, capacity_bytes: int, upper_bound_bytes: int, is_right: bool = True
) -> int:
    """Return the bytes that a decision saved; below zero, that it wasted.

    As long as nobody has told what became of the job, the decision is taken to be right.
    ``uncertain`` promises nothing, so it saves nothing.
    """
    if decision == Decision.UNCERTAIN:
        return 0
    if not is_right:
        return -capacity_bytes
    return capacity_bytes if decision == Decision.REJECT else capacity_bytes - upper_bound_bytes


def was_right(decision: str, *, ran_out: bool, is_within: bool) -> bool:
    """Tell whether what became of a job is what was said of it.

    A job that was admitted lives, within what was predicted for it; one that was rejected dies.
    """
    return ran_out if decision == Decision.REJECT else is_within and not ran_out
