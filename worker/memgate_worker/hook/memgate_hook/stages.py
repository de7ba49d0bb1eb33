"""Stages of a job (loading, training, evaluation, saving), its steps, and the shapes it was given.

A stage is seen from what the job does, since jobs do not say: a module in evaluation mode, called
without gradients, evaluates, unless it is called so before every step, as a teacher or a frozen
encoder is. So does one in training mode, if the first steps had no such calls. So
do many calls in a row with no backward pass between them, however they are made; unless the job
makes such calls before its first step, as reinforcement learning does: then they are part of its
training.

An evaluation before the first step (some jobs begin with one) tells what later ones take on top of
what the job keeps.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Callable
from weakref import WeakSet

import torch
from torch import nn

from .arguments import find_tensors, shape_of
from .marks import StageMark, StepMark
from .observer import TrainingListener

#: as ``memgate.timeline_file.JobPhase`` names them
LOADING, TRAINING, EVALUATION, SAVING = "load", "train", "evaluate", "save"

#: so many calls without a backward pass are no longer one step (a GAN, a siamese network)
_CALLS_OF_A_STEP = 16

#: after so many calls of an evaluation that all take the same, the rest will too
_CALLS_OF_AN_EVALUATION = 32

#: steps that show which calls belong to training
_STEPS_THAT_SHOW_CALLS = 4

#: of each call, the shapes of so many tensors are noted
_MAX_TENSORS = 16

#: so many different steps are told apart
_MAX_SHAPES = 1000

#: name, type and shape of a tensor that a module was called with
SeenTensor = tuple[str, str, tuple[int, ...]]

#: those of each call in a step
StepShapes = tuple[tuple[SeenTensor, ...], ...]


class Stages(TrainingListener):
    """Follows a job through its stages."""

    def __init__(
        self,
        position: Callable[[], int],
        take_peak: Callable[[], int],
        on_progress: Callable[[], None],
    ) -> None:
        """Start while the job loads; ``on_progress`` is called after steps and evaluations."""
        self._position = position
        self._take_peak = take_peak
        self._on_progress = on_progress
        self.marks: list[StageMark] = [StageMark(0, LOADING)]
        self.steps: list[StepMark] = []
        #: how often each combination of shapes was seen in a step
        self.shapes: dict[StepShapes, int] = {}
        #: of the busiest optimizer
        self.num_optimizer_steps = 0
        self.num_backward_passes = 0
        #: an evaluation after training began has ended, or goes on without taking more
        self.has_evaluated = False
        #: forward and backward passes, whatever they are for
        self.num_passes = 0
        #: is told of the shapes of each step
        self.on_step: Callable[[StepShapes], None] = lambda _: None
        self._shapes_of_step: list[tuple[SeenTensor, ...]] = []
        #: since the last backward pass, evaluations apart
        self._num_calls = 0
        self._trains_by_many_calls = False
        #: that modules in training mode are called without gradients, too
        self._trains_without_gradients = False
        #: modules that were called in evaluation mode since the last step, and in the step before
        self._in_evaluation_mode: WeakSet[nn.Module] = WeakSet()
        self._usual_in_steps: WeakSet[nn.Module] = WeakSet()
        self._num_steady_calls = 0
        self._peak_of_evaluation = 0
        self._early = _EarlyEvaluation()

    @property
    def num_steps(self) -> int:
        """Training steps so far; a job without an optimizer makes one with each backward pass."""
        return self.num_optimizer_steps or self.num_backward_passes

    @property
    def stage(self) -> str:
        """The current one."""
        return self.marks[-1].stage

    @property
    def knows_evaluation(self) -> bool:
        """What an evaluation takes was seen, or follows from one before the first step."""
        return self.has_evaluated or self._early.is_covered

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins."""
        self.num_passes += 1
        is_evaluating = not torch.is_grad_enabled() and self._evaluates(module)
        self._num_calls += not is_evaluating
        has_many_calls = self._num_calls > _CALLS_OF_A_STEP
        self._trains_by_many_calls |= has_many_calls and not self.steps
        if is_evaluating or (has_many_calls and not self._trains_by_many_calls):
            self._begin(EVALUATION)
            self._watch_evaluation(_tensors_of(args, kwargs))
        elif torch.is_grad_enabled():
            if self.stage != EVALUATION:  # that it trains again is known at the backward pass
                self._begin(TRAINING)
            self._shapes_of_step.append(_tensors_of(args, kwargs))

    def _evaluates(self, module: nn.Module) -> bool:
        """Tell whether a module that is called without gradients evaluates."""
        if not module.training:
            self._in_evaluation_mode.add(module)
            return module not in self._usual_in_steps
        if len(self.steps) < _STEPS_THAT_SHOW_CALLS:
            self._trains_without_gradients = True
        return not self._trains_without_gradients

    def function_begins(self, args: Any, kwargs: Any) -> None:
        """A compiled function is called; what it calls is not seen."""
        self._shapes_of_step.append(_tensors_of(args, kwargs))

    def backward_begins(self) -> None:
        """It trains."""
        self.num_passes += 1
        self._begin(TRAINING)
        self._num_calls = 0
        self.num_backward_passes += 1
        if not self.num_optimizer_steps:
            self._end_step()

    def step_ends(self, num_steps: int) -> None:
        """An optimizer has made a step."""
        if not self.num_optimizer_steps:
            self.steps.clear()  # of backward passes: there is an optimizer after all
        self._begin(TRAINING)
        self._num_calls = 0
        if num_steps > self.num_optimizer_steps:  # others belong to the same step (a GAN)
            self.num_optimizer_steps = num_steps
            self._end_step()

    def saving(self, save: Any) -> Any:
        """Wrap a function that saves."""

        def marked_save(*args: Any, **kwargs: Any) -> Any:
            before = self.stage
            self._begin(SAVING)
            try:
                return save(*args, **kwargs)
            finally:
                self._begin(before)

        return marked_save

    def _begin(self, stage: str) -> None:
        if stage == self.stage:
            return
        if self.stage == EVALUATION and self.steps:
            self.has_evaluated = True
        elif self.stage == EVALUATION:
            self._early.ends(self._take_peak(), kept_bytes=self._take_peak())
        self._num_steady_calls = self._peak_of_evaluation = 0
        self.marks.append(StageMark(self._position(), stage))

    def _watch_evaluation(self, tensors: tuple[SeenTensor, ...]) -> None:
        peak = self._take_peak()
        if not self.steps:
            self._early.calls(peak, _num_elements(tensors))
        self._num_steady_calls += 1
        if peak > self._peak_of_evaluation:
            self._peak_of_evaluation, self._num_steady_calls = peak, 0
        if self.steps and self._num_steady_calls >= _CALLS_OF_AN_EVALUATION:
            self.has_evaluated = True
        self._on_progress()

    def _end_step(self) -> None:
        self.steps.append(StepMark(self._position(), self._take_peak()))
        shapes = tuple(self._shapes_of_step)
        kept_bytes = self._take_peak()
        largest = max((_num_elements(call) for call in shapes), default=0)
        self._early.compare(kept_bytes, self.steps[-1].peak_bytes, largest)
        if shapes:  # the first step ends twice: with its backward pass, and with its optimizer's
            self._compare_modules()
        self._shapes_of_step.clear()
        if shapes in self.shapes or len(self.shapes) < _MAX_SHAPES:
            self.shapes[shapes] = self.shapes.get(shapes, 0) + 1
        self.on_step(shapes)
        self._on_progress()

    def _compare_modules(self) -> None:
        """What is called in evaluation mode in one step after the other belongs to training."""
        before, now = self._usual_in_steps, self._in_evaluation_mode
        if before and all(module in now for module in before):
            self._early.belongs_to_training()
        self._usual_in_steps, self._in_evaluation_mode = now, WeakSet()


def _tensors_of(args: Any, kwargs: Any) -> tuple[SeenTensor, ...]:
    """Return the tensors among arguments, however deep they are."""
    named = ((name, value) for name, value in (*enumerate(args), *kwargs.items()))
    found = (
        (path, str(tensor.dtype).replace("torch.", ""), shape_of(tensor))
        for name, value in named
        for path, tensor in find_tensors(str(name), value)
    )
    return tuple(islice(found, _MAX_TENSORS))


def _num_elements(tensors: tuple[SeenTensor, ...]) -> int:
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
