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
    _check_batches(spec)
    check_offload(spec.offload, spec.optimizer.name, spec.precision)
    if spec.compile and spec.offload.activations:
        rule = "compile: torch.compile keeps activations where it likes"
        raise RuleError(rule, "leave out 'offload.activations' or 'compile'")
    check_trainer(spec)


def _check_batches(spec: JobSpec) -> None:
    if not spec.input.varies:
        return
    if spec.iterations != USUAL_ITERATIONS:
        rule = "iterations: the batches of 'input' are run, so they say how many there are"
        raise RuleError(rule, "leave it out, or list as many batches as should be run")
    if spec.packing:
        rule = "packing: packed sequences are full, so all of them have one length"
        raise RuleError(rule, "give that length, or leave 'packing' out")
