"""Estimates at some batch sizes -> the largest batch size that is admitted.

What a job needs is nearly linear in the batch size, so the next size to try is read off the line
through two that are known; if that does not converge soon, the remaining range is halved. Asking is
up to the caller; so is how long it may take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from pydantic import BaseModel, ConfigDict

from memgate.decision import Decision
from memgate.report import Estimate
from memgate.verdict import MAX_CONTEXT_BYTES

#: no job has more samples in a batch
MAX_BATCH_SIZE = 1 << 24

#: by how much a batch may grow at once: beyond that, a line through small batches says little
MAX_GROWTH = 16

#: the share of the first guess that is tried, going down
_CAUTION = 0.95

#: a guess that is off is taken to be off by so much more than the last one was
_MAX_MISS = 8

#: after that, lines have proved useless, and halving is sure to end
MAX_GUESSES = 8


class TriedBatch(BaseModel):
    """A batch size that was asked about."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    batch_size: int
    decision: Decision
    needs_bytes: int
    upper_bound_bytes: int
    """The older name of ``needs_bytes``."""


class MaxBatch(BaseModel):
    """The largest batch that is admitted, and how it was found."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    batch_size: int | None
    """None: not even one sample is admitted."""
    headline: str
    """The answer in one line, in the words of every door."""
    proof: str = ""
    """How that is known: which batch sizes were run, and what they tell about others."""
    is_monotone: bool
    """A larger batch never needed less; otherwise a larger one may be admitted."""
    tried: list[TriedBatch]
    estimate: Estimate | None
    """At that batch size."""
    id: str | None = None
    """Of the job that answered, if a server did."""
    page: str | None = None
    """Where a person can look at the answer: a URL, or a path on the server."""

    @classmethod
    def of(cls, largest: int, said: dict[int, Estimate], proof: str = "") -> Self:
        """Tell what was found; ``said`` are the answers, ``largest`` is 0 if none is admitted.

        Without a ``proof``, the largest was run and admitted; the next was run and was not.
        """
        tried = [
            TriedBatch(
                batch_size=size,
                decision=answer.decision,
                needs_bytes=answer.needs_bytes,
                upper_bound_bytes=answer.needs_bytes,
            )
            for size, answer in sorted(said.items())
        ]
        bounds = [batch.needs_bytes for batch in tried]
        return cls(
            batch_size=largest or None,
            headline=_headline(largest, said),
            proof=proof or _proof_by_runs(largest),
            is_monotone=bounds == sorted(bounds),
            tried=tried,
            estimate=said.get(largest),
        )


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
        if said[next_size].decision is Decision.ADMIT:
            low = max(low, next_size)
            if low >= MAX_BATCH_SIZE:
                break
        else:
            high = next_size if high is None else min(high, next_size)
        next_size = choose_size(said, low, high)
    return MaxBatch.of(low, said)


def narrow_down(
    is_admitted: Callable[[int], bool],
    guess: Callable[[int, int | None], int],
    low: int,
    high: int | None,
) -> int:
    """Return the largest batch that is admitted, where ``guess`` knows more than sizes tell.

    The result was asked about, and so was the one after it: a guess proves nothing.

    Args:
        is_admitted: asks about a size.
        guess: the result as far as is known, given what is admitted and what is not.
        low: is admitted, or 0.
        high: is not admitted; None if no such size is known.
    """
    step, num_asked = 1, 0
    while low < MAX_BATCH_SIZE and (high is None or high - low > 1):
        size = guess(low, high)
        middle = 2 * max(1, low) if high is None else (low + high) // 2
        if low < size and (high is None or size < high):
            size = middle if num_asked >= MAX_GUESSES else size
        elif size <= low:  # all that is left is to see the next one, if the guess is right
            size, step = min(low + step, middle), _MAX_MISS * step
        else:
            assert high is not None, "a guess above nothing is none"
            size, step = max(high - step, middle), _MAX_MISS * step
        num_asked += 1
        if is_admitted(size := min(size, MAX_BATCH_SIZE)):
            low = size
        else:
            high = size
    return low


def _headline(largest: int, said: dict[int, Estimate]) -> str:
    if largest:
        headline = said[largest].explanation.headline
        return f"batch size {largest:,} is the largest that {headline}"
    smallest = min(said)
    return f"even batch size {smallest} {said[smallest].explanation.headline}"


def _proof_by_runs(largest: int) -> str:
    if largest == 0:
        return "batch size 1 was run"
    if largest == MAX_BATCH_SIZE:
        return f"batch size {largest:,} was run, and no larger one is looked for"
    return f"batch sizes {largest:,} and {largest + 1:,} were run"


def choose_size(said: dict[int, Estimate], low: int, high: int | None) -> int:
    """Choose the next size to ask about: where a line points, between the known sizes."""
    if high is None:
        # Allocators take memory in steps, on which lines are flat: gallop over them.
        least = low + (1 << max(0, len(said) - 3))
        return min(MAX_BATCH_SIZE, max(least, min(_guess(said), MAX_GROWTH * low)))
    if len(said) >= MAX_GUESSES:
        return (low + high) // 2
    guess = _guess(said) if low == 0 else _between(low, said[low], high, said[high])
    return min(max(guess, low + 1), high - 1)


def _between(low: int, admitted: Estimate, high: int, refused: Estimate) -> int:
    """Return where the line through an admitted and a refused size crosses the capacity.

    A job may be refused for doubts, not for its size: then the line says nothing, and halving
    works.
    """
    if refused.headroom_bytes >= 0:
        return (low + high) // 2
    fall = admitted.headroom_bytes - refused.headroom_bytes
    return low + (high - low) * admitted.headroom_bytes // fall


def _guess(said: dict[int, Estimate]) -> int:
    """Return where the line through the two answers nearest to the capacity crosses it.

    Without a second answer, the line goes through what a job takes with an empty batch, of which
    only the context is known, and what NCCL takes.
    """
    (size, nearest), *others = sorted(said.items(), key=lambda item: abs(item[1].headroom_bytes))
    for other_size, other in others[:1]:
        rise = (nearest.headroom_bytes - other.headroom_bytes) / (size - other_size)
        if rise < 0:
            return int(max(1, size - nearest.headroom_bytes / rise))
    beside = MAX_CONTEXT_BYTES + nearest.communication_range.high_bytes
    taken = max(1, nearest.needs_bytes - beside)
    share = 1 + nearest.headroom_bytes / taken
    # Going down, that is too much, and a caller with time for one try wants one that is admitted.
    return int(max(1, size * (share if share > 1 else _CAUTION * share)))
