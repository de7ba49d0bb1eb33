"""A command with ``{batch}`` in it -> the largest batch that is admitted, in a few runs.

What a job allocates is nearly affine in the batch size. So two runs tell what all others would
allocate; the largest batch is searched for among those, and proved by a run of its own. Where the
proof fails, the line goes through the nearest two runs, and the search starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memgate.batch_line import BatchLine, extrapolate_timeline
from memgate.decision import Decision
from memgate.errors import ExtrapolationError, InputError
from memgate.gpus import GpuTarget
from memgate.max_batch import MaxBatch, find_max_batch
from memgate.report import Estimate
from memgate_worker.engines.traced import TracedJob
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.reading import record_command
from memgate_worker.verdicts import estimate_run

#: stands for the batch size in a command
PLACE = "{batch}"

#: of the runs that sizes are learned from; gradients and optimizer state are there by then
_NUM_STEPS = 6

#: more of them if the longest batch is asked for: it comes after ordinary ones
_NUM_STEPS_TO_THE_LONGEST = 6

#: lines that are drawn before every size is run
_MAX_LINES = 6

#: how much larger the next run is if two do not match
_GROWTH = 8


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
    size = runs.guess(start)
    if size is None:
        found = find_max_batch(runs.ask, start)
        assert found is not None, "a search that nothing ends finds something"
        size = found.batch_size
    return runs.prove(size)


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

    def ask(self, size: int) -> Estimate:
        """Run the command for a few steps, unless it was; nothing is doubted for that."""
        if size not in self._said:
            longer = _NUM_STEPS_TO_THE_LONGEST if self._question.longest else 0
            watch = Watch(steps=_NUM_STEPS + longer)
            short = replace(self._at(size), watch=watch, has_no_evaluation=True)
            self._traced[size] = replace(record_command(short).traced, doubts=())
            self._tell(size, self._traced[size])
        return self._said[size]

    def guess(self, start: int) -> int | None:
        """Return the largest batch by lines, proved by a run; None if there is none."""
        self.ask(start)
        self.ask(2 * start)
        for _ in range(_MAX_LINES):
            try:
                size = self._search()
            except ExtrapolationError:  # small batches take other kernels than large ones
                size = _GROWTH * max(self._said)
                if self._said[max(self._said)].decision is not Decision.ADMIT:
                    return None
                self.ask(size)
                continue
            # By the line, one more is too much; so if this one is admitted, it is the largest.
            if size is None or self.ask(size).decision is Decision.ADMIT:
                return size
        return None

    def prove(self, size: int | None) -> MaxBatch:
        """Run the command at a size as the caller wants it watched, and say what was found.

        An evaluation may take more than the steps did: then the search goes on with whole runs.
        """
        if size is not None and self._watch_all(size).decision is Decision.REJECT:
            found = find_max_batch(self._watch_all, max(1, size // 2))
            assert found is not None, "a search that nothing ends finds something"
            size = found.batch_size
        return MaxBatch.of(size or 0, self._said)

    def _watch_all(self, size: int) -> Estimate:
        return self._tell(size, record_command(self._at(size)).traced)

    def _search(self) -> int | None:
        """Search on the line through the two runs that are nearest to the capacity."""
        nearest = sorted(self._said, key=lambda size: abs(self._said[size].headroom_bytes))[:2]
        low, high = min(nearest), max(nearest)
        first, second = self._traced[low], self._traced[high]

        def ask(size: int) -> Estimate:
            if size in self._said:
                return self._said[size]
            line = BatchLine((low, high), size)
            timeline = extrapolate_timeline(first.timeline, second.timeline, line)
            return estimate_run(replace(first, timeline=timeline, marks=()), self._target)

        found = find_max_batch(ask, high)
        assert found is not None, "a search that nothing ends finds something"
        return found.batch_size

    def _at(self, size: int) -> CommandQuestion:
        words = tuple(word.replace(PLACE, str(size)) for word in self._question.command)
        return replace(self._question, command=words)

    def _tell(self, size: int, traced: TracedJob) -> Estimate:
        self._said[size] = estimate_run(traced, self._target)
        self._on_size(size, self._said[size])
        return self._said[size]
