"""What the plain loop does between its steps: an evaluation, a checkpoint, an average of weights.

The trainers of libraries do this themselves; they share when it is done, and how text is generated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import JobSpec
from memgate_worker.jobs.checkpoints import without_bytes
from memgate_worker.jobs.tasks.task import Batch, move
from memgate_worker.jobs.tasks.varying import num_iterations

#: batches of an evaluation; from the second on, it takes what the others take
NUM_EVALUATION_BATCHES = 2

#: wraps what saves, so that it can be seen
Saving = Callable[[Callable[..., Any]], Callable[..., Any]]

#: what is a part of a batch that text is generated from
_PROMPT = ("input_ids", "attention_mask", "input_features", "pixel_values")


def as_it_is(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap nothing."""
    return save


def steps_between(spec: JobSpec) -> int:
    """Return after how many steps there is an evaluation or a checkpoint, and training goes on."""
    return max(1, num_iterations(spec) // 2)


class BetweenSteps:
    """What follows the steps of a plain loop."""

    def __init__(self, spec: JobSpec, model: nn.Module, batch: Batch, saving: Saving) -> None:
        """Copy the weights if an average of them is asked for; ``batch`` is of an evaluation."""
        self._spec = spec
        self._model = model
        self._batch = batch
        self._saving = saving
        self._average = average_weights(model) if spec.ema else None

    def follow(
        self, num_steps: int, optimizers: Sequence[Optimizer], predict: Callable[[Batch], Any]
    ) -> None:
        """Do what is due after so many steps; ``predict`` makes a forward pass."""
        if self._average is not None:
            self._average.update_parameters(self._model)
        if num_steps % steps_between(self._spec):
            return
        if self._spec.eval is not None:
            self._evaluate(predict)
        if self._spec.save:
            self._save(optimizers)

    def _evaluate(self, predict: Callable[[Batch], Any]) -> None:
        spec = self._spec.eval
        assert spec is not None
        self._model.eval()
        with torch.no_grad():
            for _ in range(NUM_EVALUATION_BATCHES):
                if spec.generate is not None:
                    kept = generate(self._model, self._batch, spec.generate)
                else:
                    # named, though never read: a script's variable holds it until the next turn
                    kept = predict(self._batch)  # noqa: F841
        self._model.train()

    def _save(self, optimizers: Sequence[Optimizer]) -> None:
        with without_bytes():
            save = self._saving(torch.save)
            save(
                {
                    "model": self._model.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                },
                os.devnull,
            )


def average_weights(model: nn.Module) -> AveragedModel:
    """Make a copy of a model that follows it, as torch's documents show."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn())


def generate(model: nn.Module, batch: Batch, num_tokens: int) -> Any:
    """Have a model continue a batch by exactly so many tokens, with its cache.

    Raises:
        UnsupportedJobError: of a model that does not generate.
    """
    whole: Any = model
    if not hasattr(whole, "generate"):
        raise UnsupportedJobError(
            f"eval.generate: {type(model).__name__} does not generate text; leave it out"
        )
    prompt = {name: batch[name] for name in _PROMPT if name in batch}
    settings = whole.generation_config
    kept, settings.eos_token_id = settings.eos_token_id, None  # what ends a text is in no data here
    try:
        return whole.generate(
            **move(prompt, "cuda"), max_new_tokens=num_tokens, do_sample=False, use_cache=True
        )
    finally:
        settings.eos_token_id = kept
