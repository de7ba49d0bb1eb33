"""A decision, and whether it was right -> memory saved, as the VeritasEst paper counts it.

The paper runs each job twice: on the whole device, and capped at what the estimator said. A right
verdict saves what the cap leaves free, or the whole device if the job would have died on it; a
wrong one wastes the whole device. Our cap is the upper bound: the memory in which we promise that
an admitted job survives.
"""

from __future__ import annotations

from memgate.decision import Decision


def memory_saved(
    decision: str, *, capacity_bytes: int, upper_bound_bytes: int, is_right: bool = True
) -> int:
    """Return the bytes that a decision saved, or, if negative, wasted.

    Until somebody reports how the job ended, the decision is assumed to be right.
    ``uncertain`` promises nothing, so it saves nothing.
    """
    if decision == Decision.UNCERTAIN:
        return 0
    if not is_right:
        return -capacity_bytes
    return capacity_bytes if decision == Decision.REJECT else capacity_bytes - upper_bound_bytes


def was_right(decision: str, *, ran_out: bool, is_within: bool) -> bool:
    """Say whether a job ended as was predicted.

    An admitted job survives, within what was predicted for it; a rejected one dies.
    """
    return ran_out if decision == Decision.REJECT else is_within and not ran_out
