"""A way to run a job at any batch size -> the largest batch that is admitted, in few runs.

What a job allocates is affine in the batch size, but for scratch memory: two runs tell what it
would take at every other size. The largest that would be admitted is searched for among those, with
replays only, and a third run proves it: it must need what the other two told, to the byte. Where it
does not, or where two runs do not match, more sizes are run, until one is admitted and the next is
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from memgate.batch_line import BatchLine, extrapolate_timeline
from memgate.decision import Decision
from memgate.errors import ExtrapolationError
from memgate.max_batch import (
    MAX_BATCH_SIZE,
    MAX_GROWTH,
    MAX_GUESSES,
    MaxBatch,
    choose_size,
    find_max_batch,
)
from memgate.report import Estimate
from memgate.units import format_size
from memgate_worker.engines.traced import TracedJob


class SizedRun(NamedTuple):
    """A run of the job at some batch size, and what it says about the GPU."""

    traced: TracedJob
    said: Estimate


#: judges a run
Judge = Callable[[TracedJob], Estimate]


class BatchSearch:
    """The search, as far as it has come."""

    def __init__(self, run: Callable[[int], TracedJob], judge: Judge) -> None:
        """``run`` runs the job at a batch size, and ``judge`` says whether a run fits."""
        self._run = run
        self._judge = judge
        self._runs: dict[int, SizedRun] = {}
        #: admitted, not admitted
        self._low, self._high = 0, MAX_BATCH_SIZE + 1

    @property
    def _said(self) -> dict[int, Estimate]:
        return {size: run.said for size, run in self._runs.items()}

    def find(
        self,
        start: int,
        goes_on: Callable[[], bool] = lambda: True,
        on_said: Callable[[int, Estimate], None] = lambda *_: None,
    ) -> MaxBatch | None:
        """Return what was found, beginning with a size; None if ``goes_on`` ended the search.

        ``on_said`` is told of each run.
        """
        size, line = start, None
        while True:
            if not goes_on():
                return None
            said = self._ask(size)
            on_said(size, said)
            if line is not None and line.is_proved_by(size, said):
                return MaxBatch.of(line.largest, self._said, proof=line.tell_proof(size, said))
            if self._high - self._low == 1:
                return MaxBatch.of(self._low, self._said)
            line = self._find_line()
            size = self._choose(line)

    def _ask(self, size: int) -> Estimate:
        traced = self._run(size)
        run = self._runs[size] = SizedRun(traced, self._judge(traced))
        if run.said.decision is Decision.ADMIT:
            self._low = max(self._low, size)
        else:
            self._high = min(self._high, size)
        return run.said

    def _find_line(self) -> _LargestOnLine | None:
        """Search on the line through the two runs that are nearest to the capacity."""
        if not 2 <= len(self._runs) < MAX_GUESSES:
            return None
        nearest = sorted(self._runs, key=lambda size: abs(self._runs[size].said.headroom_bytes))
        low, high = sorted(nearest[:2])
        first, second = self._runs[low].traced, self._runs[high].traced
        told = self._said

        def ask(size: int) -> Estimate:
            if size not in told:
                told[size] = self._judge(extrapolate_run(first, second, low, high, size))
            return told[size]

        try:
            found = find_max_batch(ask, nearest[0])
        except ExtrapolationError:  # small batches take other kernels than large ones
            return None
        largest = 0 if found is None else found.batch_size or 0
        if not self._low <= largest < min(self._high, MAX_BATCH_SIZE):
            return None
        return _LargestOnLine((low, high), largest, told)

    def _choose(self, line: _LargestOnLine | None) -> int:
        """Choose the next size to run."""
        high = None if self._high > MAX_BATCH_SIZE else self._high
        if line is None:
            return choose_size(self._said, self._low, high)
        size = line.largest if line.largest > self._low else line.largest + 1
        # what small batches tell about very large ones is tried in between
        return min(size, MAX_GROWTH * max(self._runs))


class _LargestOnLine(NamedTuple):
    """The largest batch that would be admitted if a job needed what two runs tell."""

    batches: tuple[int, int]
    #: 0: none
    largest: int
    #: what was run, and what would be said of others
    told: dict[int, Estimate]

    def is_proved_by(self, size: int, said: Estimate) -> bool:
        """Say whether a run at the edge is what the line says."""
        return size in (self.largest, self.largest + 1) and (
            (said.needs_bytes, said.decision) == self._told(size)
        )

    def _told(self, size: int) -> tuple[int, Decision]:
        return self.told[size].needs_bytes, self.told[size].decision

    def tell_proof(self, size: int, said: Estimate) -> str:
        """Say what was run, and what was not."""
        first, second = self.batches
        proof = (
            f"batch sizes {first:,} and {second:,} were run, and tell what others take; a run at"
            f" {size:,} took exactly that"
        )
        if size != self.largest:
            return proof
        needs = format_size(self.told[size + 1].needs_bytes)
        return f"{proof}, and by the same line {size + 1:,} needs {needs}: it was not run"


def extrapolate_run(
    first: TracedJob, second: TracedJob, low: int, high: int, size: int
) -> TracedJob:
    """Return a job at another batch size than two runs of it, each rank on a line of its own.

    Raises:
        ExtrapolationError: if the two runs do not match, or if they are not all that is known.
    """
    if first.varied is not None or first.least_segments_bytes is not None:
        raise ExtrapolationError("what the job does depends on more than the batch size")
    if [one.rank for one in first.ranks] != [one.rank for one in second.ranks]:
        raise ExtrapolationError("other ranks were run at another batch size")
    line = BatchLine((low, high), size)
    ranks = [
        replace(
            one,
            timeline=extrapolate_timeline(one.timeline, other.timeline, line),
            marks=(),
            other_ranks=(),
        )
        for one, other in zip(first.ranks, second.ranks, strict=True)
    ]
    return replace(ranks[0], other_ranks=tuple(ranks[1:]))
