"""Batches of different sizes -> those that are run, where there are too many to run all.

What is left out is said: memory may grow by fragments that only the others would have made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from memgate.jobspec import InputSpec

#: batches that are run for one answer: a GPT-2 takes about a second for four of them
MAX_RUN = 128


def choose_batches(batches: Sequence[InputSpec], limit: int = MAX_RUN) -> tuple[int, ...]:
    """Return the positions of the batches that are run, in their order.

    All, if there are no more than ``limit``. Otherwise the first half of the limit; of those after
    it, every batch that is larger than all before it, with the batch before and the one after, the
    largest first; and, as far as there is room, what precedes the largest of all.
    """
    if len(batches) <= limit:
        return tuple(range(len(batches)))
    sizes = [measure_batch(batch) for batch in batches]
    chosen = range(limit // 2)
    records: list[int] = []
    largest = max(sizes[: limit // 2])
    for at in range(limit // 2, len(sizes)):
        if sizes[at] > largest:
            largest = sizes[at]
            records.append(at)
    around = [
        near for at in reversed(records) for near in (at, at - 1, at + 1) if near < len(sizes)
    ]
    last = records[-1] if records else limit // 2
    wanted = dict.fromkeys([*around, *range(last, -1, -1), *range(last, len(sizes))])
    more = [at for at in wanted if at not in chosen]
    return tuple(sorted([*chosen, *more[: limit - len(chosen)]]))


def measure_batch(batch: InputSpec) -> int:
    """Return a number that is larger for a larger batch: elements of one sample."""
    return (batch.length or 1) * prod(batch.sample_shape or ())


def name_batch(batch: InputSpec) -> str:
    """Say how large the samples of a batch are: ``length 640``, ``3x480x640``."""
    parts = [] if batch.length is None else [f"length {batch.length:,}"]
    if batch.sample_shape is not None:
        parts.append("x".join(map(str, batch.sample_shape)))
    return " and ".join(parts)
