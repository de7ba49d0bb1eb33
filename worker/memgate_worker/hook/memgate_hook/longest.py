"""``--longest N``: lets the job meet batches that are as long as its longest.

Batches are compared as they come: from data loaders, or, if there are none, where the job moves
them to the GPU. What varies among them is padded to N in two batches, after the ordinary ones. Two,
since loops keep the result of one until the next is there. It was run if a training step after that
was larger than all before, and N long.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.data import dataloader

from .lengths import BatchHistory, NoPlanError, Plan, SeenBatchTensor, Tensors
from .moves import Moves
from .padding import UnknownBatchError, find_batch_tensors, pad_batch, pad_tensor, see_tensor
from .stages import Stages, StepShapes
from .watch import MIN_STEPS

#: batches that are padded, of each source
_NUM_PADDED = 2


class Longest:
    """Pads batches, and knows whether the job has trained with one."""

    def __init__(self, length: int, stages: Stages) -> None:
        """Watch data loaders and moves to the GPU from now on."""
        self._length = length
        self._stages = stages
        self._loaders: dict[int, _Source] = {}
        self._moves = _Source()
        self._batch: dict[str, SeenBatchTensor] = {}
        self._plan: Plan | None = None
        self._problem: str | None = None
        #: of a batch that was longer than the one that was asked for
        self._longer: int | None = None
        self._in_proportion = False
        #: that dimensions have in padded batches; empty until there was one
        self._sizes: set[int] = set()
        #: elements of the largest step before any batch was padded
        self._largest_step = 0
        #: the number of the training step
        self._run_at: int | None = None
        stages.on_step = self._see_step
        self._watch_loaders()
        Moves(self._take_move, lambda: stages.num_passes)

    @property
    def is_due(self) -> bool:
        """It may still be run, or the step that ran it was the last one."""
        if self._run_at is not None:
            return self._stages.num_steps <= self._run_at
        return self._problem is None and not self._are_all_as_long()

    def _are_all_as_long(self) -> bool:
        """Tell whether the batches do not vary, and are of the length that was asked for."""
        if self._stages.num_steps < MIN_STEPS or len(self._stages.shapes) > 1:
            return False
        tensors = [tensor for step in self._stages.shapes for call in step for tensor in call]
        return any(self._length in shape[1:2] for _, _, shape in tensors)  # behind it are features

    def describe(self) -> dict[str, Any]:
        """Return what became of it, as plain values."""
        return {
            "length": self._length,
            "is_run": self._run_at is not None,
            "in_proportion": self._in_proportion,
            "longer": self._longer,
            "problem": self._problem or "",
        }

    def _see_step(self, shapes: StepShapes) -> None:
        """A training step has ended, in which modules were called with tensors of these shapes."""
        tensors = [shape for call in shapes for _, _, shape in call]
        elements = sum(map(prod, tensors))
        if not self._sizes:
            self._largest_step = max(elements, self._largest_step)
            return
        is_long = any(self._is_long(size) for shape in tensors for size in shape)
        if self._run_at is None and elements >= self._largest_step and is_long:
            self._run_at = self._stages.num_steps

    def _is_long(self, size: int) -> bool:
        """Tell a size of the longest batch: as it is, one less or more, or for all samples."""
        near = (self._length - 1, self._length, self._length + 1)
        return size in self._sizes or (size > 1 and any(size % one == 0 for one in near if one > 1))

    def _plan_for(self, source: _Source) -> Plan | None:
        """Return what the next batch of a source is to be like; None if it is left alone."""
        if self._stages.num_steps < MIN_STEPS or source.num_padded >= _NUM_PADDED:
            return None
        try:
            return source.history.plan(self._length)
        except NoPlanError as error:
            self._problem = str(error)
            return None

    def _pad(self, source: _Source, plan: Plan) -> None:
        """Note that the next batch of a source is padded."""
        source.num_padded += 1
        source.plan = plan
        self._in_proportion |= plan.in_proportion
        for sizes in plan.sizes.values():
            self._sizes.update(sizes.values())

    def _take_ordinary(self, source: _Source, batch: Tensors) -> None:
        source.history.add(batch)
        if source.plan is not None:
            self._longer = source.plan.longer_size(batch) or self._longer

    # --- data loaders

    def _watch_loaders(self) -> None:
        iterator: Any = dataloader._BaseDataLoaderIter
        get_next = iterator.__next__

        def get_padded(loader: Any) -> Any:
            batch = get_next(loader)
            return self._take_batch(self._loaders.setdefault(id(loader._dataset), _Source()), batch)

        iterator.__next__ = get_padded

    def _take_batch(self, source: _Source, batch: Any) -> Any:
        try:
            tensors = find_batch_tensors(batch)
        except UnknownBatchError as error:
            self._problem = f"{error}, which cannot be padded"
            return batch
        seen = {place: see_tensor(tensor) for place, tensor in tensors.items()}
        plan = self._plan_for(source)
        if plan is None or not plan.takes(seen):
            self._take_ordinary(source, seen)
            return batch
        self._pad(source, plan)
        return pad_batch(batch, plan)

    # --- moves to the GPU

    def _take_move(self, place: str, tensor: torch.Tensor) -> torch.Tensor:
        if self._loaders:
            return tensor
        if place in self._batch:  # the batch before is whole
            if self._plan is None:
                self._take_ordinary(self._moves, self._batch)
            self._batch, self._plan = {}, self._plan_for(self._moves)
            if self._plan is not None:
                self._pad(self._moves, self._plan)
        seen = self._batch[place] = see_tensor(tensor)
        if self._plan is None or not self._plan.takes({place: seen}):
            return tensor
        return pad_tensor(place, tensor, self._plan)


class _Source:
    """Where batches come from."""

    def __init__(self) -> None:
        self.history = BatchHistory()
        self.num_padded = 0
        #: what was made of it
        self.plan: Plan | None = None
