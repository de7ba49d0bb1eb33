"""What was seen of a job's evaluations, and whether that tells what another one takes.

An evaluation that has ended was seen whole, and one that goes on with batches of one shape takes no
more than it does. A call or two with less than a step gets only try the model out.

One that used a data loader to its end is what it looks like. Any other one with less than a step
gets may be a first try, and tells what others take by proportion: without gradients, memory grows
at most as the batch does. If that is less than what training takes, nothing is left to be seen. The
same goes for data loaders with larger batches that were not used yet.

An evaluation before the first step (some jobs begin with one) tells what later ones take on top of
what the job keeps.
"""

from __future__ import annotations

import math
from typing import Callable
from weakref import WeakKeyDictionary

from torch import nn

#: name, type and shape of a tensor that a module was called with
SeenTensor = tuple[str, str, tuple[int, ...]]

#: after so many calls of an evaluation that all take the same, the rest will too
_CALLS_OF_AN_EVALUATION = 32

#: fewer calls than that, in all evaluations so far, may only have tried the model out
_FEW_CALLS = 4


class Evaluations:
    """Evaluations of a job so far."""

    def __init__(
        self,
        largest_unused: Callable[[], int] = lambda: 0,
        num_ends: Callable[[], int] = lambda: 0,
    ) -> None:
        """Begin.

        Args:
            largest_unused: how many samples batches have that may still come.
            num_ends: how often a data loader was used to its end.
        """
        self._largest_unused = largest_unused
        self._num_ends = num_ends
        #: one had all batches of a loader
        self._is_complete = False
        self._num_ends_before = 0
        self._early = _EarlyEvaluation()
        self._is_early = True
        #: of those after training began
        self._num_calls = 0
        self._num_elements = 0
        self.num_ended = 0
        self._ended_elements = 0
        self._is_steady = False
        #: of the largest call, and of all that had as much
        self.num_samples = 0
        self._rise_bytes = 0
        #: of the current one
        self._num_steady_calls = 0
        self._peak_bytes = 0
        self._base_bytes: int | None = None
        self._sample_shapes: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()
        #: the most that a call in a training step was given, and took
        self._step_elements = 0
        self._step_peak_bytes = 0
        self._kept_bytes = 0

    @property
    def are_enough(self) -> bool:
        """There is nothing to wait for; after small ones, a larger one may still come."""
        return self._are_many and self._is_large and self._is_covered

    @property
    def are_known(self) -> bool:
        """What an evaluation takes was seen, or follows from one before the first step."""
        is_whole = self._has_settled and self._num_elements >= self._step_elements
        is_early = self._early.is_covered and not self._largest_unused()
        return ((self._are_many or is_whole) and self._is_covered) or is_early

    @property
    def _are_many(self) -> bool:
        return self._is_steady or (self._has_settled and self._num_calls >= _FEW_CALLS)

    @property
    def _has_settled(self) -> bool:
        """One has ended, and none goes on with more than it had."""
        return self.num_ended > 0 and self._num_elements <= self._ended_elements

    @property
    def _is_large(self) -> bool:
        """One used a data loader to its end, or had as much as a training step."""
        return self._is_complete or self._num_elements >= self._step_elements

    @property
    def _is_covered(self) -> bool:
        """Larger evaluations than those that were seen take no more than training does."""
        of_step = 1.0 if self._is_large else self._step_elements / max(1, self._num_elements)
        ratio = max(of_step, self._largest_unused() / max(1, self.num_samples))
        return ratio <= 1 or self._kept_bytes + ratio * self._rise_bytes <= self._step_peak_bytes

    def calls(
        self,
        module: nn.Module,
        tensors: tuple[SeenTensor, ...],
        peak_bytes: int,
        kept_bytes: int = 0,
    ) -> None:
        """A call begins; the peak is that of what came before it."""
        if self._is_early:
            self._early.calls(peak_bytes, num_elements(tensors))
            return
        if self._base_bytes is None:
            self._base_bytes = min(kept_bytes, self._kept_bytes)
            self._num_ends_before = self._num_ends()
        else:
            self._rises_to(peak_bytes)
        self._num_calls += 1
        self._num_elements = max(self._num_elements, num_elements(tensors))
        self.num_samples = max(self.num_samples, num_samples(tensors))
        shapes = self._sample_shapes.setdefault(module, set())
        shapes.add(tuple(shape[1:] for _, _, shape in tensors))
        self._num_steady_calls += 1
        if peak_bytes > self._peak_bytes:
            self._peak_bytes, self._num_steady_calls = peak_bytes, 0
        # Where batches differ, the largest may be the last.
        is_uniform = all(len(of_one) == 1 for of_one in self._sample_shapes.values())
        self._is_steady |= is_uniform and self._num_steady_calls >= _CALLS_OF_AN_EVALUATION

    def _rises_to(self, peak_bytes: int) -> None:
        self._rise_bytes = max(self._rise_bytes, peak_bytes - (self._base_bytes or 0))

    def end(self, peak_bytes: int, kept_bytes: int) -> None:
        """One ends; the peak is that of its last call."""
        if self._is_early:
            self._early.ends(peak_bytes, kept_bytes)
        elif self._base_bytes is not None:
            self._rises_to(peak_bytes)
            self._is_complete |= self._num_ends() > self._num_ends_before
        self.num_ended += not self._is_early
        self._ended_elements = self._num_elements
        self._num_steady_calls = self._peak_bytes = 0
        self._base_bytes = None
        self._sample_shapes.clear()

    def step_ends(self, kept_bytes: int, peak_bytes: int, largest: int) -> None:
        """A training step has ended; the largest of its calls was given so many elements."""
        self._is_early = False
        self._kept_bytes = kept_bytes
        self._step_peak_bytes = max(self._step_peak_bytes, peak_bytes)
        self._step_elements = max(self._step_elements, largest)
        self._early.compare(kept_bytes, peak_bytes, largest)

    def belong_to_training(self) -> None:
        """What was called before the first step is called before each of them."""
        self._early.belongs_to_training()


def num_samples(tensors: tuple[SeenTensor, ...]) -> int:
    """Return how many samples a call was given."""
    return max((shape[0] for _, _, shape in tensors if shape), default=0)


def num_elements(tensors: tuple[SeenTensor, ...]) -> int:
    """Return how much a call was given."""
    return sum(math.prod(shape) for _, _, shape in tensors)


class _EarlyEvaluation:
    """An evaluation before the first step, and whether training takes more than one like it."""

    def __init__(self) -> None:
        self.is_covered = False
        self._is_one = True
        self._num_calls = 0
        self._num_elements = 0
        self._peak_bytes = 0
        self._rise_bytes = 0

    def calls(self, peak_bytes: int, num_elements: int) -> None:
        """A call begins; the peak is that of what came before it."""
        self._peak_bytes = max(self._peak_bytes, peak_bytes if self._num_calls else 0)
        self._num_calls += 1
        self._num_elements = max(self._num_elements, num_elements)

    def ends(self, peak_bytes: int, kept_bytes: int) -> None:
        """It ends; what is kept then, such as workspaces of cuBLAS, is there in training, too."""
        self._rise_bytes = max(self._peak_bytes, peak_bytes) - kept_bytes

    def belongs_to_training(self) -> None:
        """What was called before the first step is called before each of them."""
        self._is_one = self.is_covered = False

    def compare(self, kept_bytes: int, peak_bytes: int, num_elements: int) -> None:
        """A step has ended; the largest of its calls was given so many elements.

        A call or two with less than a step gets are no evaluation, but try the model out.
        """
        is_one = self._is_one and self._num_calls > 1 and self._num_elements >= num_elements > 0
        self.is_covered = is_one and kept_bytes + self._rise_bytes <= peak_bytes
