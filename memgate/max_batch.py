"""Estimates at some batch sizes -> the largest batch size that is admitted.

What a job needs is nearly a line in the batch size, so the next size to try is read off the line
through the two nearest ones that are known, and what is left between is halved. Asking is the
caller's business; so is how long it may take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from memgate.report import Estimate

#: no job has more samples in a batch
MAX_BATCH_SIZE = 1 << 24


class TriedBatch(BaseModel):
    """A batch size that was asked about."""

    model_config = ConfigDict(frozen=True)

    batch_size: int
    decision: Literal["admit", "uncertain", "reject"]
    upper_bound_bytes: int


class MaxBatch(BaseModel):
    """The largest batch that is admitted, and how it was found."""

    model_config = ConfigDict(frozen=True)

    batch_size: int | None
    """None: not even one sample is admitted."""
    is_monotone: bool
    """A larger batch never needed less; else there may be an admitted one above."""
    tried: list[TriedBatch]
    estimate: Estimate | None
    """At that batch size."""


def find_max_batch(
    ask: Callable[[int], Estimate], start: int, goes_on: Callable[[], bool] = lambda: True
) -> MaxBatch | None:
    """Find the largest batch that is admitted; None if ``goes_on`` says that it takes too long."""
    said: dict[int, Estimate] = {}
    low, high = 0, None  # admitted, not admitted
    next_size = start
    while high is None or high - low > 1:
        if not goes_on():
            return None
        said[next_size] = ask(next_size)
        if said[next_size].decision == "admit":
            low = max(low, next_size)
            if low >= MAX_BATCH_SIZE:
                break
        else:
            high = next_size if high is None else min(high, next_size)
        next_size = _choose(said, low, high)
    tried = [
        TriedBatch(
            batch_size=size,
            decision=answer.decision,
            upper_bound_bytes=answer.upper_bound_bytes,
        )
        for size, answer in sorted(said.items())
    ]
    bounds = [batch.upper_bound_bytes for batch in tried]
    return MaxBatch(
        batch_size=low or None,
        is_monotone=bounds == sorted(bounds),
        tried=tried,
        estimate=said.get(low),
    )


def _choose(said: dict[int, Estimate], low: int, high: int | None) -> int:
    """Choose what to ask about next: where the line says, between what is known."""
    guess = _read_off_line(said)
    if high is None:
        grown = min(MAX_BATCH_SIZE, max(2 * low, 1))
        return grown if guess is None else min(MAX_BATCH_SIZE, max(low + 1, guess))
    middle = (low + high) // 2
    # The line first; where it was asked about already, beside it, then halves.
    for size in (guess, None if guess is None else guess + 1):
        if size is not None and low < size < high and size not in said:
            return size
    return middle


def _read_off_line(said: dict[int, Estimate]) -> int | None:
    """Return the batch size at which the line through the two largest would pass the capacity."""
    if len(said) < 2:
        return None
    (size, one), (other_size, other) = sorted(
        said.items(), key=lambda item: abs(item[1].headroom_bytes)
    )[:2]
    rise = (one.headroom_bytes - other.headroom_bytes) / (size - other_size)
    if rise >= 0:
        return None
    return max(1, int(size - one.headroom_bytes / rise))
