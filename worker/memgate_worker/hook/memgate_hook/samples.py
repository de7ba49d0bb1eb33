"""A data set -> its longest samples.

Lengths are read where a data set has them in a table, as those of Hugging Face do. Otherwise each
sample is taken and measured, for as long as that may take.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

#: how long samples may be measured
_SECONDS = 15.0


class UnmeasuredError(Exception):
    """Not all samples could be measured; the message says why."""


def find_longest_samples(dataset: Any, count: int) -> list[int]:
    """Return the indices of the longest samples, the longest first.

    Raises:
        UnmeasuredError: if they are not known.
    """
    lengths = _read_table(dataset)
    if lengths is None:
        with _same_random_numbers():
            lengths = list(_measure(dataset))
    return heapq.nlargest(count, range(len(lengths)), key=lengths.__getitem__)


def _read_table(dataset: Any) -> list[int] | None:
    """Return the lengths of a table's token lists; None if it is not a table, or has none."""
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list) or "input_ids" not in names:
        return None
    column = dataset.select_columns(["input_ids"]).with_format("arrow")[:].column("input_ids")
    return [length or 0 for chunk in column.chunks for length in chunk.value_lengths().to_pylist()]


def _measure(dataset: Any) -> Iterator[int]:
    deadline = time.monotonic() + _SECONDS
    for index in range(len(dataset)):
        yield length_of(dataset[index])
        if time.monotonic() > deadline and index + 1 < len(dataset):
            raise UnmeasuredError(
                f"only {index + 1} of the {len(dataset)} samples of its data set could be measured"
                f" in {_SECONDS:g} s"
            )


def length_of(sample: Any) -> int:
    """Return how many numbers and characters a sample has."""
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if isinstance(sample, Mapping):
        return sum(map(length_of, sample.values()))
    if isinstance(sample, (list, tuple)):
        return sum(map(length_of, sample))
    if isinstance(sample, (str, bytes)):
        return len(sample)
    size = getattr(sample, "size", 1)  # an array's elements, or the two sides of a picture
    return int(torch.Size(size).numel()) if isinstance(size, tuple) else int(size)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Let the job draw the numbers that it would have drawn: samples may be augmented."""
    state, torch_state = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(state)
        torch.set_rng_state(torch_state)
