"""Lightning's Trainer, around a model, its task and samples of ours.

The module is what people write: ``training_step`` returns the loss of the task, and Lightning does
the rest by itself ("automatic optimization").
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import JobSpec, Precision
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.between_steps import (
    NUM_EVALUATION_BATCHES,
    Saving,
    average_weights,
    generate,
    steps_between,
)
from memgate_worker.jobs.checkpoints import without_bytes
from memgate_worker.jobs.compiling import compile_model
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.loop import evaluation_task, place, ready
from memgate_worker.jobs.optimizers import make_optimizers, needs_closure
from memgate_worker.jobs.tasks.task import Batch, Task
from memgate_worker.jobs.tasks.varying import num_iterations
from memgate_worker.jobs.trainers.hf import count_batches
from memgate_worker.jobs.trainers.samples import Samples, put_together

#: weights of the low precision are converted by us, as "true" precisions of Lightning are
_PRECISIONS = {
    Precision.FP32: "32-true",
    Precision.TF32: "32-true",
    Precision.AMP_FP16: "16-mixed",
    Precision.AMP_BF16: "bf16-mixed",
    Precision.FP16: "16-true",
    Precision.BF16: "bf16-true",
}


class LightningJob:
    """A job that Lightning's Trainer runs."""

    def __init__(self, spec: JobSpec, model: nn.Module, saving: Saving) -> None:
        """Make the model as it is given to the module."""
        self._lightning = need_library("lightning.pytorch", "trainer")
        self._spec, model, tasks = ready(spec, model)
        self._batches = [task.batch for task in tasks]
        evaluation = evaluation_task(self._spec, model, tasks)
        self._evaluated = evaluation.batch
        device = "cpu" if spec.quantization is None else "cuda"
        model = compile_model(place(self._spec, model, device), spec.compile)
        self._module = _make_module(self._lightning, self._spec, model, evaluation)
        self._saving = saving

    def run(self) -> None:
        """Run Lightning's own loop."""
        warnings.simplefilter("ignore")  # advice about data loaders
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        spec = self._spec
        loaders = [self._load(self._batches, spec.batch_size, count_batches(spec))]
        if spec.eval is not None:
            size = spec.eval.batch_size or spec.batch_size
            loaders.append(self._load([self._evaluated], size, NUM_EVALUATION_BATCHES))
        with tempfile.TemporaryDirectory() as folder, without_bytes():
            self._make_trainer(folder).fit(self._module, *loaders)

    def _load(
        self, batches: Sequence[Batch], batch_size: int, num_batches: int
    ) -> DataLoader[Batch]:
        samples = Samples(batches, batch_size, num_batches)
        return DataLoader(samples, batch_size=batch_size, collate_fn=put_together)

    def _make_trainer(self, folder: str) -> Any:
        spec = self._spec
        every = steps_between(spec)
        try:
            return self._lightning.Trainer(
                accelerator="gpu",
                devices=1,
                precision=_PRECISIONS[spec.precision],
                max_steps=num_iterations(spec),
                accumulate_grad_batches=spec.gradient_accumulation_steps,
                gradient_clip_val=spec.clip_grad_norm,
                val_check_interval=every * spec.gradient_accumulation_steps,
                benchmark=spec.cudnn_benchmark,
                callbacks=self._callbacks(folder, every),
                enable_checkpointing=spec.save,
                default_root_dir=folder,
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
        except (ValueError, RuntimeError) as error:
            rule = f"{spec.trainer.full_name} refuses the job: {' '.join(str(error).split())}"
            mistake = Mistake(field="trainer", value=show_value(spec.trainer.value), rule=rule)
            raise InputError.from_mistakes(mistake) from error

    def _callbacks(self, folder: str, every: int) -> list[Any]:
        found = []
        if self._spec.save:
            found.append(_make_checkpoint(self._lightning, folder, every, self._saving))
        if self._spec.ema:
            found.append(_make_average(self._lightning))
        return found


def _make_module(library: Any, spec: JobSpec, model: nn.Module, task: Task) -> Any:
    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Batch, _: int) -> Any:
            outputs = task.call(self.model, batch)
            return task.loss(outputs, batch)

        def validation_step(self, batch: Batch, _: int) -> None:
            assert spec.eval is not None
            if spec.eval.generate is not None:
                generate(self.model, batch, spec.eval.generate)
                return
            outputs = task.call(self.model, batch)
            if not isinstance(outputs, list):  # what was detected has no loss
                task.loss(outputs, batch)

        def configure_optimizers(self) -> Any:
            optimizers = make_optimizers(spec.optimizer, self.model)
            if len(optimizers) > 1 or needs_closure(type(optimizers[0])):
                raise UnsupportedJobError(
                    f"optimizer: with {spec.trainer.full_name} memgate knows one optimizer, whose"
                    f" state is complete after a step, and {spec.optimizer.name} needs more than"
                    " that; use the trainer 'plain'"
                )
            return optimizers[0]

    return Module()


def _make_checkpoint(library: Any, folder: str, every: int, saving: Saving) -> Any:
    class Checkpoint(library.callbacks.ModelCheckpoint):
        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            return saving(super()._save_checkpoint)(*args, **kwargs)

    return Checkpoint(dirpath=folder, every_n_train_steps=every)


def _make_average(library: Any) -> Any:
    """Return Lightning's own average of weights; before 2.6, one that people write themselves."""
    if hasattr(library.callbacks, "EMAWeightAveraging"):
        return library.callbacks.EMAWeightAveraging()

    class Averaging(library.Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            self._average = average_weights(module)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            self._average.update_parameters(module)

    return Averaging()
