"""A command with ``{batch}`` in it -> the largest batch that is admitted, in a few runs.

What a job allocates is nearly affine in the batch size. So two runs tell what all others would
allocate; the largest batch is searched for among those, and proved by a run of its own, and by one
that is larger by one sample. Where a run is not what the line says, the line goes through the
nearest two runs, and the search goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from memgate.decision import Decision
from memgate.errors import ExtrapolationError, InputError, UnsupportedJobError
from memgate.gpus import GpuTarget
from memgate.max_batch import (
    MAX_BATCH_SIZE,
    MaxBatch,
    choose_size,
    find_max_batch,
    narrow_down,
)
from memgate.report import Estimate
from memgate_worker.batch_search import extrapolate_run
from memgate_worker.engines.traced import TracedJob
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.verdicts import estimate_run

#: stands for the batch size in a command
PLACE = "{batch}"

#: of the runs that sizes are learned from; gradients and optimizer state are there by then
_NUM_STEPS = 6

#: more of them if the longest batch is asked for: it comes after ordinary ones
_NUM_STEPS_TO_THE_LONGEST = 6


def find_largest_batch_of(
    question: CommandQuestion,
    target: GpuTarget,
    *,
    start: int,
    on_size: Callable[[int, Estimate], None] = lambda *_: None,
) -> MaxBatch:
    """Find the largest batch of a command that is admitted; ``on_size`` is told of each run.

    The first runs are at ``start`` and twice that, for a few steps; the last one is watched as the
    question wants it, and its decision counts.

    Raises what ``record_command`` raises, and:
        InputError: if the command does not say where the batch size goes.
    """
    if not any(PLACE in word for word in question.command):
        raise InputError(
            f"the command has no {PLACE}: write it where the batch size goes, as in"
            f" python train.py --batch-size {PLACE}"
        )
    runs = _Runs(question, target, on_size)
    return runs.prove(runs.find(start))


class _Runs:
    """Runs of a command at some batch sizes."""

    def __init__(
        self,
        question: CommandQuestion,
        target: GpuTarget,
        on_size: Callable[[int, Estimate], None],
    ) -> None:
        self._question = question
        self._target = target
        self._on_size = on_size
        self._traced: dict[int, TracedJob] = {}
        self._said: dict[int, Estimate] = {}
        self._shapes: dict[int, set[tuple[int, ...]]] = {}

    def ask(self, size: int) -> Estimate:
        """Run the command for a few steps, unless it was; nothing is doubted for that."""
        if size not in self._said:
            longer = _NUM_STEPS_TO_THE_LONGEST if self._question.longest else 0
            watch = Watch(steps=_NUM_STEPS + longer)
            short = replace(self._at(size), watch=watch, has_no_evaluation=True)
            run = record_command(short)
            self._traced[size] = _without_doubts(run.traced)
            self._tell(size, self._traced[size])
            self._check_that_it_grows(size, {batch.shape for batch in run.batches})
        return self._said[size]

    def _check_that_it_grows(self, size: int, shapes: set[tuple[int, ...]]) -> None:
        """Refuse to go on where a batch of another size is the same batch.

        Raises:
            UnsupportedJobError: nothing is known beyond what there is.
        """
        for other, seen in self._shapes.items():
            if shapes and seen == shapes and 2 * min(other, size) <= max(other, size):
                raise UnsupportedJobError(
                    f"the job's batches are the same at {PLACE} {min(other, size)} and"
                    f" {max(other, size)}: its data have no more samples, or it does not use"
                    f" {PLACE} for them; what a larger batch takes is not known"
                )
        self._shapes[size] = shapes

    def find(self, start: int) -> int:
        """Return the largest batch that is admitted in a few steps; 0 if there is none."""
        decisions = {size: self.ask(size).decision for size in (start, 2 * start)}
        admitted = [size for size, decision in decisions.items() if decision is Decision.ADMIT]
        low = max(admitted, default=0)
        high = min(
            (size for size in decisions if size > low and size not in admitted), default=None
        )
        return narrow_down(
            lambda size: self.ask(size).decision is Decision.ADMIT, self._guess, low, high
        )

    def prove(self, size: int) -> MaxBatch:
        """Run the command at a size as the caller wants it watched, and say what was found.

        An evaluation may take more than the steps did: then the search goes on with whole runs.
        """
        if size and self._watch_all(size).headroom_bytes < 0:
            known = self._said[size]
            self._said = {size: known}  # few steps tell too little, and would not go with these
            found = find_max_batch(self._fits_whole, max(1, size // 2))
            assert found is not None, "a search that nothing ends finds something"
            size = found.batch_size or 0
        return MaxBatch.of(size, self._said)

    def _fits_whole(self, size: int) -> Estimate:
        """Answer by the size alone; doubts are the same for all sizes."""
        said = self._said.get(size) or self._watch_all(size)
        return said.model_copy(
            update={"decision": Decision.ADMIT if said.headroom_bytes >= 0 else Decision.REJECT}
        )

    def _watch_all(self, size: int) -> Estimate:
        return self._tell(size, record_command(self._at(size)).traced)

    def _guess(self, low: int, high: int | None) -> int:
        with suppress(ExtrapolationError):  # small batches take other kernels than large ones
            if (size := self._search()) < MAX_BATCH_SIZE:
                return size
        # Where two runs do not match, or the line is flat, sizes grow by and by.
        return choose_size(self._said, low, high)

    def _search(self) -> int:
        """Search on the line through the two runs that are nearest to the capacity."""
        nearest = sorted(self._said, key=lambda size: abs(self._said[size].headroom_bytes))[:2]
        low, high = min(nearest), max(nearest)
        first, second = self._traced[low], self._traced[high]

        def ask(size: int) -> Estimate:
            if size in self._said:
                return self._said[size]
            between = extrapolate_run(first, second, low, high, size)
            return estimate_run(between, self._target)

        found = find_max_batch(ask, high)
        assert found is not None, "a search that nothing ends finds something"
        return found.batch_size or 0

    def _at(self, size: int) -> CommandQuestion:
        words = tuple(word.replace(PLACE, str(size)) for word in self._question.command)
        return replace(self._question, command=words)

    def _tell(self, size: int, traced: TracedJob) -> Estimate:
        known, self._said[size] = self._said.get(size), estimate_run(traced, self._target)
        said = self._said[size]
        if known is None or (known.decision, known.needs_bytes) != (
            said.decision,
            said.needs_bytes,
        ):
            self._on_size(size, said)
        return said


def _without_doubts(traced: TracedJob) -> TracedJob:
    others = tuple(replace(other, doubts=()) for other in traced.other_ranks)
    return replace(traced, doubts=(), other_ranks=others)
