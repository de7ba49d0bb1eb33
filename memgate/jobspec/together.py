"""Which fields of a job spec go together. What concerns a trainer is in ``trainers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memgate.jobspec.model import ModelSource
from memgate.jobspec.trainers import check_trainer
from memgate.jobspec.training import USUAL_ITERATIONS, Loss, Precision, check_offload
from memgate.mistakes import RuleError

if TYPE_CHECKING:
    from memgate.jobspec.spec import JobSpec


#: of images, unless they are of another
_USUAL_TYPE = "float32"

#: of images and latents, by precision; autocast makes any type fit
_TAKES = {
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.FP16: "float16",
    Precision.BF16: "bfloat16",
}


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
    _check_input(spec)
    if spec.quantization is not None and spec.lora is None:
        rule = "quantization: quantised weights cannot be trained"
        raise RuleError(rule, "add 'lora', an adapter beside them")
    if spec.input.varies and spec.iterations != USUAL_ITERATIONS:
        rule = "iterations: the batches of 'input' are run, so they say how many there are"
        raise RuleError(rule, "leave it out, or list as many batches as should be run")
    divided = spec.distributed
    if divided is not None and divided.no_sync and spec.gradient_accumulation_steps == 1:
        rule = "distributed.no_sync: gradients are sent in every step, since each has one batch"
        raise RuleError(rule, "leave it out, or give 'gradient_accumulation_steps'")
    check_offload(spec.offload, spec.optimizer.name, spec.precision)
    check_trainer(spec)


def _check_input(spec: JobSpec) -> None:
    source = spec.model.source
    if spec.input.dtype != _USUAL_TYPE and source is ModelSource.TRANSFORMERS:
        rule = f"input.dtype is {spec.input.dtype}: it has no effect on what {source}' models take"
        step = "leave it out; 'precision' is the type of weights and batches, and 'tensors' have"
        raise RuleError(rule, f"{step} types of their own")
    takes = _TAKES.get(spec.precision)
    if takes is not None and spec.input.dtype not in (_USUAL_TYPE, takes):
        rule = f"input.dtype is {spec.input.dtype}: with precision {spec.precision}"
        rule = f"{rule} weights are {takes}, and a model takes images of the same type"
        raise RuleError(rule, "leave it out, or give a precision that casts (amp-bf16, amp-fp16)")
    if spec.input.precomputed and source is not ModelSource.DIFFUSERS:
        rule = f"input.precomputed: it is for latents of diffusers' models, and this is {source}'s"
        raise RuleError(rule, "leave it out")
