"""Which fields of a job spec go together. What concerns a trainer is in ``trainers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memgate.jobspec.model import ModelSource
from memgate.jobspec.trainers import check_trainer
from memgate.jobspec.training import USUAL_ITERATIONS, Loss, check_offload
from memgate.mistakes import RuleError

if TYPE_CHECKING:
    from memgate.jobspec.spec import JobSpec


def check_together(spec: JobSpec) -> None:
    """Check that each field means something beside the others, and that something is trained.

    Raises:
        RuleError: naming the field.
    """
    is_of_transformers = spec.model.source is ModelSource.TRANSFORMERS
    if spec.loss is Loss.CONTRASTIVE and not is_of_transformers:
        rule = "loss: contrastive compares texts, by a model of transformers"
        raise RuleError(rule, "leave it out")
    if spec.liger and not is_of_transformers:
        rule = f"liger: liger-kernel has layers for transformers, not for {spec.model.source}"
        raise RuleError(rule, "leave it out")
    if spec.quantization is not None and spec.lora is None:
        rule = "quantization: quantised weights cannot be trained"
        raise RuleError(rule, "add 'lora', an adapter beside them")
    if spec.input.varies and spec.iterations != USUAL_ITERATIONS:
        rule = "iterations: the batches of 'input' are run, so they say how many there are"
        raise RuleError(rule, "leave it out, or list as many batches as should be run")
    check_offload(spec.offload, spec.optimizer.name, spec.precision)
    check_trainer(spec)
