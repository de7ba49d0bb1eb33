"""Stages of a job (loading, training, evaluation, saving), its steps, and the shapes it was given.

A stage is seen from what the job does, since jobs do not say: a module in evaluation mode, called
without gradients, evaluates, unless it is called so before every step, as a teacher or a frozen
encoder is. So does one in training mode, if the first steps had no such calls. So
do many calls in a row with no backward pass between them, however they are made; unless the job
makes such calls before its first step, as reinforcement learning does: then they are part of its
training. What is known by evaluations is up to ``evaluations``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Callable
from weakref import WeakSet

import torch
from torch import nn

from .arguments import find_tensors, find_tensors_in_objects, shape_of
from .evaluations import Evaluations, SeenTensor, num_elements, num_samples
from .loaders import Loaders
from .marks import StageMark, StepMark
from .observer import TrainingListener

#: as ``memgate.timeline_file.JobPhase`` names them
LOADING, TRAINING, EVALUATION, SAVING = "load", "train", "evaluate", "save"

#: so many calls without a backward pass are no longer one step (a GAN, a siamese network)
_CALLS_OF_A_STEP = 16

#: steps that show which calls belong to training
_STEPS_THAT_SHOW_CALLS = 4

#: of each call, the shapes of so many tensors are noted
_MAX_TENSORS = 16

#: so many different steps are told apart
_MAX_SHAPES = 1000

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
        self._loaders = Loaders(lambda: self._sample_elements)
        self.evaluations = Evaluations(self._find_larger_loader, lambda: self._loaders.num_ends)
        #: the most that a call in a training step was given
        self._num_samples = 0
        #: of each sample in it
        self._sample_elements = 0.0
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
        #: a call with gradients after an evaluation, with which training may have gone on
        self._may_train_since: int | None = None
        #: modules that were called in evaluation mode since the last step, and in the step before
        self._in_evaluation_mode: WeakSet[nn.Module] = WeakSet()
        self._usual_in_steps: WeakSet[nn.Module] = WeakSet()

    @property
    def num_steps(self) -> int:
        """Training steps so far; a job without an optimizer makes one with each backward pass."""
        return self.num_optimizer_steps or self.num_backward_passes

    @property
    def stage(self) -> str:
        """The current one."""
        return self.marks[-1].stage

    def nothing_comes_later(self) -> None:
        """The job has come to its end by itself: it uses no other loader."""
        self._loaders.are_over = True

    @property
    def larger_loader(self) -> int:
        """Samples in a batch of a loader that shuffles and was not used; 0: none has more."""
        size = self._loaders.largest_unused_shuffled
        return size if size > self._num_samples > 0 else 0

    def _find_larger_loader(self) -> int:
        """Return the samples in a batch of a loader that was not used; 0: none has more."""
        size = self._loaders.largest_unused
        return size if size > max(self._num_samples, self.evaluations.num_samples) else 0

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins."""
        self.num_passes += 1
        is_evaluating = not torch.is_grad_enabled() and self._evaluates(module)
        self._num_calls += not is_evaluating
        has_many_calls = self._num_calls > _CALLS_OF_A_STEP
        self._trains_by_many_calls |= has_many_calls and not self.steps
        if is_evaluating or (has_many_calls and not self._trains_by_many_calls):
            self._begin(EVALUATION)
            self._may_train_since = None
            peak_bytes, kept_bytes = self._take_peak(), self._take_peak()
            self.evaluations.calls(module, _tensors_of(args, kwargs), peak_bytes, kept_bytes)
            self._on_progress()
        elif torch.is_grad_enabled():
            if self.stage != EVALUATION:
                self._begin(TRAINING)
            elif self._may_train_since is None:  # that it trains again is known at the backward
                self._may_train_since = self._position()
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
        position = self._position()
        if self.stage == EVALUATION:
            self.evaluations.end(self._take_peak(), kept_bytes=self._take_peak())
            if stage == TRAINING and self._may_train_since is not None:
                position = self._may_train_since
        self._may_train_since = None
        self.marks.append(StageMark(position, stage))

    def _end_step(self) -> None:
        peak_bytes, kept_bytes = self._take_peak(), self._take_peak()
        self.steps.append(StepMark(self._position(), peak_bytes))
        shapes = tuple(self._shapes_of_step)
        largest = max((num_elements(call) for call in shapes), default=0)
        self._num_samples = max((self._num_samples, *map(num_samples, shapes)))
        self._sample_elements = max(self._sample_elements, largest / max(1, self._num_samples))
        self.evaluations.step_ends(kept_bytes, peak_bytes, largest)
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
            self.evaluations.belong_to_training()
        self._usual_in_steps, self._in_evaluation_mode = now, WeakSet()


def _tensors_of(args: Any, kwargs: Any) -> tuple[SeenTensor, ...]:
    """Return the tensors among arguments, however deep they are.

    Only if there are none, objects are looked into: those that come beside a batch (caches of keys
    and values, for instance) are no part of it.
    """
    named = [(str(name), value) for name, value in (*enumerate(args), *kwargs.items())]
    found = [*islice(_find_all(find_tensors, named), _MAX_TENSORS)]
    if not found:
        found = [*islice(_find_all(find_tensors_in_objects, named), _MAX_TENSORS)]
    return tuple(
        (path, str(tensor.dtype).replace("torch.", ""), shape_of(tensor)) for path, tensor in found
    )


def _find_all(find: Any, named: list[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in named:
        yield from find(name, value)
