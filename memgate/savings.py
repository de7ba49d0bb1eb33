"""A decision, and what became of the job -> memory saved, as the VeritasEst paper counts it.

The paper runs each job twice: on the whole device, and capped at what the estimator said. A right
verdict saves what the cap leaves free, or the whole device if the job would have died on it; a
wrong one, or a cap in which the job dies, wastes the whole device. Our cap is the upper bound: that
is what an admitted job is promised to live in.
"""

from __future__ import annotations


def memory_saved(
    decision: str,
    *,
    capacity_bytes: int,
    upper_bound_bytes: int,
    measured_bytes: int | None = None,
    ran_out: bool = False,
) -> int:
    """Return the bytes that a decision saved; below zero, that it wasted.

    Without ``measured_bytes`` nobody has told what became of the job: the decision is taken to be
    right. ``uncertain`` promises nothing, so it saves nothing.
    """
    if decision == "uncertain":
        return 0
    if decision == "reject":
        lived = measured_bytes is not None and not ran_out
        return -capacity_bytes if lived else capacity_bytes
    died = ran_out or (measured_bytes is not None and measured_bytes > upper_bound_bytes)
    return -capacity_bytes if died else capacity_bytes - upper_bound_bytes
