"""What was seen of a job's evaluations, and whether that tells what another one takes.

An evaluation that has ended was seen whole, and one that goes on with batches of one shape takes no
more than it does. A call or two with less than a step gets only try the model out.

An evaluation before the first step (some jobs begin with one) tells what later ones take on top of
what the job keeps.
"""

from __future__ import annotations

import math
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

    def __init__(self) -> None:
        self._early = _EarlyEvaluation()
        self._is_early = True
        #: of those after training began
        self._num_calls = 0
        self._num_elements = 0
        self._has_ended = False
        self._is_steady = False
        #: of the current one
        self._num_steady_calls = 0
        self._peak_bytes = 0
        self._sample_shapes: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()
        #: the most that a call in a training step was given
        self._step_elements = 0

    @property
    def are_enough(self) -> bool:
        """There is nothing to wait for."""
        return self._is_steady or (self._has_ended and self._num_calls >= _FEW_CALLS)

    @property
    def are_known(self) -> bool:
        """What an evaluation takes was seen, or follows from one before the first step."""
        is_whole = self._has_ended and self._num_elements >= self._step_elements
        return self.are_enough or is_whole or self._early.is_covered

    def calls(self, module: nn.Module, tensors: tuple[SeenTensor, ...], peak_bytes: int) -> None:
        """A call begins; the peak is that of what came before it."""
        if self._is_early:
            self._early.calls(peak_bytes, num_elements(tensors))
            return
        self._num_calls += 1
        self._num_elements = max(self._num_elements, num_elements(tensors))
        shapes = self._sample_shapes.setdefault(module, set())
        shapes.add(tuple(shape[1:] for _, _, shape in tensors))
        self._num_steady_calls += 1
        if peak_bytes > self._peak_bytes:
            self._peak_bytes, self._num_steady_calls = peak_bytes, 0
        # Where batches differ, the largest may be the last.
        is_uniform = all(len(of_one) == 1 for of_one in self._sample_shapes.values())
        self._is_steady |= is_uniform and self._num_steady_calls >= _CALLS_OF_AN_EVALUATION

    def end(self, peak_bytes: int, kept_bytes: int) -> None:
        """One ends; the peak is that of its last call."""
        if self._is_early:
            self._early.ends(peak_bytes, kept_bytes)
        self._has_ended |= not self._is_early
        self._num_steady_calls = self._peak_bytes = 0
        self._sample_shapes.clear()

    def step_ends(self, kept_bytes: int, peak_bytes: int, largest: int) -> None:
        """A training step has ended; the largest of its calls was given so many elements."""
        self._is_early = False
        self._step_elements = max(self._step_elements, largest)
        self._early.compare(kept_bytes, peak_bytes, largest)

    def belong_to_training(self) -> None:
        """What was called before the first step is called before each of them."""
        self._early.belongs_to_training()


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
