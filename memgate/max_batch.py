"""Estimates at some batch sizes -> the largest batch size that is admitted.

What a job needs is nearly a line in the batch size, so the next size to try is read off the line
through the two known ones that are nearest to the capacity. Where the line leads nowhere, sizes are
doubled, and then what is left between is halved: whatever the need is like, there are at most a few
dozen questions. Asking is the caller's business; so is how long it may take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from memgate.report import Estimate

#: no job has more samples in a batch
MAX_BATCH_SIZE = 1 << 24

#: a line through two small batches says little of batches that are much larger
_MAX_GROWTH = 16

#: how often the line is believed before what is left is halved
_MAX_GUESSES = 2


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
    num_guesses = 0
    while high is None or high - low > 1:
        if not goes_on():
            return None
        said[next_size] = ask(next_size)
        if said[next_size].decision == "admit":
            low = next_size
            if low >= MAX_BATCH_SIZE:
                break
        else:
            high = next_size
        guess = _read_off_line(said)
        if high is None:
            next_size = _grow(low, guess)
        elif guess is not None and num_guesses < _MAX_GUESSES:
            # What the line says, and then the one beside it, which should be on the other side.
            next_size = min(max(guess, low + 1), high - 1)
            num_guesses += 1
        else:
            next_size = (low + high) // 2
            num_guesses = 0
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


def _grow(low: int, guess: int | None) -> int:
    """Choose a larger size, as all so far were admitted."""
    if guess is None or guess <= low:
        return min(MAX_BATCH_SIZE, 2 * low)
    return min(MAX_BATCH_SIZE, _MAX_GROWTH * low, guess)


def _read_off_line(said: dict[int, Estimate]) -> int | None:
    """Return the batch size at which a line would pass the capacity, None if it does not fall.

    It goes through the two sizes that are nearest to the capacity.
    """
    if len(said) < 2:
        return None
    (size, one), (other_size, other) = sorted(
        said.items(), key=lambda item: abs(item[1].headroom_bytes)
    )[:2]
    rise = (one.headroom_bytes - other.headroom_bytes) / (size - other_size)
    if rise >= 0:
        return None
    return max(1, int(size - one.headroom_bytes / rise))
