"""``--longest data``: lets the job meet a batch of the longest samples of its data set.

Data loaders ask for samples by their numbers. After the ordinary ones, two batches are asked for
with the numbers of the longest samples instead; the data set and the job's own code make of them
what they make of any batch. It was run if a training step after that was as large as any before.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

from .lengths import BatchHistory, NoPlanError, SeenBatchTensor
from .samples import UnmeasuredError, find_longest_samples
from .stages import Stages, StepShapes
from .watch import MIN_STEPS

#: batches of each data set that are replaced
_NUM_REPLACED = 2


class LongestSamples:
    """Replaces batches, and knows whether the job has trained with one."""

    def __init__(self, stages: Stages) -> None:
        """Watch data loaders from now on."""
        self._stages = stages
        self._asked: WeakKeyDictionary[Any, _Asked] = WeakKeyDictionary()
        self._num_replaced: dict[int, int] = {}
        self._problem: str | None = "it has no data loader that asks for samples by their numbers"
        self._is_given = False
        self._largest_step = 0
        self._run_at: int | None = None
        self._history = BatchHistory()
        stages.on_step = self._see_step
        self._watch_loaders()

    @property
    def is_due(self) -> bool:
        """It may still be run, or the step that ran it was the last one."""
        if self._run_at is not None:
            return self._stages.num_steps <= self._run_at
        return self._problem is None

    def describe(self) -> dict[str, Any]:
        """Return what became of it, as plain values."""
        return {
            "length": None,
            "is_run": self._run_at is not None,
            "in_proportion": self._have_several_lengths(),
            "longer": None,
            "problem": self._problem or "",
        }

    def _have_several_lengths(self) -> bool:
        """Tell whether dimensions vary on their own: the longest samples are not so in each."""
        try:
            plan = self._history.plan(sys.maxsize)
        except NoPlanError:
            return True
        return plan is not None and plan.in_proportion

    def _see_step(self, shapes: StepShapes) -> None:
        tensors = [tensor for call in shapes for tensor in call]
        self._history.add(
            {f"{i}.{name}": SeenBatchTensor(shape) for i, (name, _, shape) in enumerate(tensors)}
        )
        elements = sum(prod(shape) for call in shapes for _, _, shape in call)
        if self._is_given and self._run_at is None and elements >= self._largest_step:
            self._run_at = self._stages.num_steps
        self._largest_step = max(elements, self._largest_step)

    def _watch_loaders(self) -> None:
        iterator: Any = dataloader._BaseDataLoaderIter
        next_index, get_next = iterator._next_index, iterator.__next__

        def ask(loader: Any) -> Any:
            return self._replace(loader, next_index(loader))

        def give(loader: Any) -> Any:
            batch = get_next(loader)
            asked = self._asked.setdefault(loader, _Asked())
            self._is_given |= asked.num_given in asked.replaced
            asked.num_given += 1
            return batch

        iterator._next_index = ask
        iterator.__next__ = give

    def _replace(self, loader: Any, indices: Any) -> Any:
        asked = self._asked.setdefault(loader, _Asked())
        number = asked.num_asked
        asked.num_asked += 1
        if loader._dataset_kind != dataloader._DatasetKind.Map or not isinstance(indices, list):
            return indices
        if asked.num_samples is None:
            asked.num_samples, self._problem = len(indices), None
        elif asked.is_uneven:  # only the last batch may be smaller
            self._problem = "the number of samples in its batches varies"
        asked.is_uneven |= len(indices) != asked.num_samples
        if self._stages.num_steps < MIN_STEPS or asked.is_uneven or self._problem:
            return indices
        longest = self._find(loader._dataset, len(indices))
        if longest:
            asked.replaced.add(number)
        return longest or indices

    def _find(self, dataset: Any, count: int) -> list[int]:
        """Return the longest samples of a data set; none if it had its turns."""
        num_replaced = self._num_replaced.get(id(dataset), 0)
        if num_replaced == _NUM_REPLACED:
            return []
        self._num_replaced[id(dataset)] = num_replaced + 1
        try:
            return find_longest_samples(dataset, count)
        except UnmeasuredError as error:
            self._problem = str(error)
            return []


class _Asked:
    """What a pass over a data loader has asked for so far."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.num_given = 0
        #: of the first batch
        self.num_samples: int | None = None
        #: a batch had another number of samples
        self.is_uneven = False
        #: numbers of the batches that were replaced
        self.replaced: set[int] = set()
