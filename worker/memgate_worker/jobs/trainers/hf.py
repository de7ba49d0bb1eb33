"""transformers' Trainer, on a model and samples of ours.

The model is on the CPU when Trainer gets it, as scripts do it; a quantised one is on the GPU, where
its weights were quantised.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import SequentialSampler

from memgate.errors import UnsupportedJobError
from memgate.jobspec import JobSpec
from memgate_worker.jobs.between_steps import NUM_EVALUATION_BATCHES, Saving, generate
from memgate_worker.jobs.checkpoints import without_bytes
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.loop import evaluation_task, place, ready
from memgate_worker.jobs.models import WithoutFilling
from memgate_worker.jobs.tasks.task import Batch
from memgate_worker.jobs.tasks.varying import num_iterations
from memgate_worker.jobs.trainers.hf_optimizer import make_optimizer_factory
from memgate_worker.jobs.trainers.samples import Samples, is_plain, put_together
from memgate_worker.jobs.trainers.settings import make_arguments


class HfJob:
    """A job that Trainer runs."""

    def __init__(self, spec: JobSpec, model: nn.Module, saving: Saving) -> None:
        """Make the model as it is given to Trainer."""
        need_library("accelerate", "trainer")
        library = need_library("transformers.trainer", "trainer")
        self._spec, model, tasks = ready(spec, model)
        self._batches = [task.batch for task in tasks]
        self._evaluated = evaluation_task(self._spec, model, tasks).batch
        self._model = place_for_trainer(self._spec, model)
        self._library = library
        self._trainer_class = make_trainer_class(library.Trainer, self._spec, saving)

    def run(self) -> None:
        """Run Trainer's own loop."""
        spec, library = self._spec, self._library
        with tempfile.TemporaryDirectory() as folder:
            collate = library.default_data_collator
            if not is_plain(self._batches[0], spec.batch_size):
                collate = put_together
            trainer = self._trainer_class(
                model=self._model,
                args=make_arguments(library.TrainingArguments, spec, Path(folder)),
                data_collator=collate,
                train_dataset=Samples(self._batches, spec.batch_size, count_batches(spec)),
                eval_dataset=self._evaluation(),
                callbacks=make_callbacks(spec, self._evaluated),
            )
            train(trainer, spec)

    def _evaluation(self) -> Samples | None:
        spec = self._spec.eval
        if spec is None:
            return None
        size = spec.batch_size or self._spec.batch_size
        return Samples([self._evaluated], size, NUM_EVALUATION_BATCHES)


def train(trainer: Any, spec: JobSpec) -> None:
    """Have a trainer of transformers train.

    Raises:
        UnsupportedJobError: of a model that does not compute its loss.
    """
    if spec.distributed is not None:
        _prepare_blank(trainer.accelerator)
    try:
        with without_bytes():
            trainer.train()
    except ValueError as error:
        if "did not return a loss" not in str(error):
            raise
        raise UnsupportedJobError(
            f"trainer: {type(trainer.model).__name__} does not compute a loss, and"
            f" {spec.trainer.full_name} has none of its own; use the trainer 'plain'"
        ) from error


def _prepare_blank(accelerator: Any) -> None:
    """Have a model divided without its weights on the CPU being computed with."""
    prepare = accelerator.prepare

    def prepare_blank(*args: Any, **kwargs: Any) -> Any:
        with WithoutFilling():
            return prepare(*args, **kwargs)

    accelerator.prepare = prepare_blank


def count_batches(spec: JobSpec) -> int:
    """Return how many batches a job takes."""
    return num_iterations(spec) * spec.gradient_accumulation_steps


def place_for_trainer(spec: JobSpec, model: nn.Module) -> nn.Module:
    """Return a model as scripts give it to Trainer, which enables checkpointing itself."""
    device = "cpu" if spec.quantization is None else "cuda"
    is_prepared = spec.quantization is not None and spec.quantization.prepare
    update = {"gradient_checkpointing": spec.gradient_checkpointing and is_prepared}
    model = place(spec.model_copy(update=update), model, device)
    if spec.gradient_checkpointing and spec.lora is not None:
        # Trainer leaves that to scripts: without it, nothing of a frozen model is differentiated.
        whole: Any = model
        whole.enable_input_require_grads()
    return model


def make_trainer_class(base: type[Any], spec: JobSpec, saving: Saving) -> type[Any]:
    """Return a trainer with the spec's optimizer, that takes samples in their order.

    Raises:
        InputError: if there is no such optimizer.
        UnsupportedJobError: if Trainer cannot use it.
    """

    class WatchedTrainer(make_optimizer_factory(spec, base)):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            save: Callable[..., Any] = super()._save_checkpoint
            return saving(save)(*args, **kwargs)

    return WatchedTrainer


def make_callbacks(spec: JobSpec, batch: Batch) -> list[Any]:
    """Return what generates text after each evaluation, if that is asked for."""
    if spec.eval is None or spec.eval.generate is None:
        return []
    num_tokens = spec.eval.generate
    callback: Any = need_library("transformers.trainer", "trainer").TrainerCallback

    class Generating(callback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = given["model"]
            was_training = model.training
            model.eval()
            for _ in range(NUM_EVALUATION_BATCHES):
                generate(model, batch, num_tokens)
            model.train(was_training)

    return [Generating()]
