"""Estimates at some batch sizes -> the largest batch size that is admitted.

What a job needs is nearly a line in the batch size, so the next size to try is read off the line
through two that are known. Where the line leads nowhere, sizes are doubled, and then what is left
between is halved: whatever the need is like, there are at most a few dozen questions. Asking is the
caller's business; so is how long it may take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from memgate.report import Estimate
from memgate.verdict import MAX_CONTEXT_BYTES

#: no job has more samples in a batch
MAX_BATCH_SIZE = 1 << 24

#: by how much a batch may grow at once: beyond, a line through small batches says little
_MAX_GROWTH = 16

#: how far apart two sizes must be, as a share of the one, for a line through both
_LEAST_BASE = 1 / 16

#: what is taken of the first guess, downwards
_CAUTION = 0.95

#: how often the line is believed before sizes are doubled or halved once
_MAX_GUESSES = 3


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
        if num_guesses < _MAX_GUESSES:
            # What the line says, or beside what is known: that should be on the other side.
            most = _MAX_GROWTH * low if high is None else high - 1
            next_size = min(max(_guess(said), low + 1), most, MAX_BATCH_SIZE)
            num_guesses += 1
        else:
            next_size = min(2 * low, MAX_BATCH_SIZE) if high is None else (low + high) // 2
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


def _guess(said: dict[int, Estimate]) -> int:
    """Return the batch size at which the line through two answers passes the capacity.

    Through the one nearest to it, and the next nearest that is not beside it: allocators take
    memory in steps, so what one more sample changes says little. Without a second answer, through
    what a job takes at no batch at all, of which the context alone is known.
    """
    (size, nearest), *others = sorted(said.items(), key=lambda item: abs(item[1].headroom_bytes))
    for other_size, other in others:
        rise = (nearest.headroom_bytes - other.headroom_bytes) / (size - other_size)
        if rise < 0 and abs(size - other_size) >= _LEAST_BASE * size:
            return int(max(1, size - nearest.headroom_bytes / rise))
    taken = max(1, nearest.upper_bound_bytes - MAX_CONTEXT_BYTES)
    share = 1 + nearest.headroom_bytes / taken
    # Downwards that is too much, and whoever has time for one try wants one that is admitted.
    return int(max(1, size * (share if share > 1 else _CAUTION * share)))
