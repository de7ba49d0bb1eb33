"""Sizes at two batch sizes -> sizes at any other: a part for the job, a part for each sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memgate.errors import ExtrapolationError
from memgate.timeline import Alloc, Timeline, TimelineEvent


class BatchLine:
    """The line through what was seen at two batch sizes."""

    def __init__(self, batches: tuple[int, int], batch: int) -> None:
        first, second = batches
        self._past, self._apart = batch - first, second - first

    def at(self, first: int, second: int) -> int:
        """Return the value at the batch size that is asked for; a part of a byte is a byte."""
        return first - (first - second) * self._past // self._apart


def extrapolate_timeline(first: Timeline, second: Timeline, line: BatchLine) -> Timeline:
    """Return what a job would do at another batch size, from two runs of it.

    Raises:
        ExtrapolationError: if the two runs do not have the same events but for their sizes, or a
            size would be negative.
    """
    return replace(first, events=tuple(_extrapolate(first, second, line)))


def _extrapolate(first: Timeline, second: Timeline, line: BatchLine) -> Iterator[TimelineEvent]:
    if len(first.events) != len(second.events):
        raise ExtrapolationError(
            f"{len(first.events)} events at one batch size, {len(second.events)} at another: what"
            " the job does depends on the batch size"
        )
    for one, other in zip(first.events, second.events, strict=True):
        if isinstance(one, Alloc) and isinstance(other, Alloc):
            size = line.at(one.size_bytes, other.size_bytes)
            if one.stream != other.stream or size < 0:
                raise ExtrapolationError("what the job allocates depends on the batch size")
            yield Alloc(one.block_id, size, one.stream)
        elif one == other:
            yield one
        else:
            raise ExtrapolationError("the order of events depends on the batch size")
