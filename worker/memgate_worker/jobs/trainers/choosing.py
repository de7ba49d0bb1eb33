"""JobSpec, model -> the job, ready to run: memgate's own loop, or the trainer of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import nn

from memgate.jobspec import JobSpec, Strategy, Trainer
from memgate_worker.jobs.between_steps import Saving
from memgate_worker.jobs.loop import TrainingLoop

_DEVICE = "cuda"


class Job(Protocol):
    """Something that trains."""

    def run(self) -> None:
        """Run all iterations."""


def start_job(spec: JobSpec, model: nn.Module, saving: Saving) -> Job:
    """Make what trains a model on the GPU; ``saving`` wraps what saves checkpoints.

    Raises:
        InputError: if the spec asks for what the trainer or the model does not have.
        UnsupportedJobError: if the trainer cannot train it.
        LibraryMissingError: if the runtime lacks the trainer's library.
    """
    return _STARTERS[spec.trainer](spec, model, saving)


def _start_plain(spec: JobSpec, model: nn.Module, saving: Saving) -> Job:
    if spec.distributed is not None and spec.distributed.strategy is Strategy.PP:
        from memgate_worker.jobs.distributed.pipeline import PipelineLoop

        return PipelineLoop(spec, model, _DEVICE)
    return TrainingLoop(spec, model, _DEVICE, saving)


# Each imports its library when it is used.


def _start_hf(spec: JobSpec, model: nn.Module, saving: Saving) -> Job:
    from memgate_worker.jobs.trainers.hf import HfJob

    return HfJob(spec, model, saving)


def _start_trl(spec: JobSpec, model: nn.Module, saving: Saving) -> Job:
    from memgate_worker.jobs.trainers.trl import SftJob

    return SftJob(spec, model, saving)


def _start_lightning(spec: JobSpec, model: nn.Module, saving: Saving) -> Job:
    from memgate_worker.jobs.trainers.lightning import LightningJob

    return LightningJob(spec, model, saving)


_STARTERS: dict[Trainer, Callable[[JobSpec, nn.Module, Saving], Job]] = {
    Trainer.PLAIN: _start_plain,
    Trainer.HF: _start_hf,
    Trainer.TRL_SFT: _start_trl,
    Trainer.LIGHTNING: _start_lightning,
}
