"""What a trainer decides itself, and what it can be asked for.

A library's trainer has defaults of its own, and does some things in its own way. They are written
into a spec when it is read, so that a spec always says what is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memgate.jobspec.adapters import QuantizationLibrary
from memgate.jobspec.model import ModelSource
from memgate.jobspec.optimizer import OptimizerSpec
from memgate.jobspec.training import CompileSpec, Loss, Trainer, ZeroGrad
from memgate.mistakes import RuleError

if TYPE_CHECKING:
    from memgate.jobspec.spec import JobSpec

#: where each trainer drops gradients; the plain loop is told
_ZERO_GRAD = {
    Trainer.HF: ZeroGrad.AFTER_STEP,
    Trainer.TRL_SFT: ZeroGrad.AFTER_STEP,
    Trainer.LIGHTNING: ZeroGrad.BEFORE_BACKWARD,
}

#: of transformers' ``TrainingArguments``
_OPTIMIZER = OptimizerSpec(name="AdamW")
_MAX_GRAD_NORM = 1.0


def own_defaults(spec: JobSpec) -> dict[str, Any]:
    """Return what the trainer of a job does where its spec says nothing, by field."""
    if spec.trainer is Trainer.PLAIN:
        return {}
    defaults: dict[str, Any] = {"zero_grad": _ZERO_GRAD[spec.trainer]}
    if spec.trainer.is_of_transformers:
        defaults["optimizer"] = _OPTIMIZER
    missing = {name: value for name, value in defaults.items() if name not in spec.model_fields_set}
    if spec.trainer.is_of_transformers and spec.clip_grad_norm is None:
        missing["clip_grad_norm"] = _MAX_GRAD_NORM
    return missing


def check_trainer(spec: JobSpec) -> None:
    """Check that a trainer can do what is asked of it.

    Raises:
        RuleError: naming the field.
    """
    _check_packing(spec)
    is_of_transformers = spec.model.source is ModelSource.TRANSFORMERS
    if spec.eval is not None and spec.eval.generate and not is_of_transformers:
        rule = "eval.generate: models of transformers generate text"
        raise RuleError(rule, f"leave it out for one of {spec.model.source}")
    trainer = spec.trainer
    if trainer is Trainer.PLAIN:
        return
    own = _ZERO_GRAD[trainer]
    if spec.zero_grad is not own:
        rule = f"zero_grad is {spec.zero_grad}: {trainer.full_name} drops gradients itself, {own}"
        raise RuleError(rule, "leave it out")
    if trainer.is_of_transformers:
        _check_transformers(spec)
    if spec.channels_last:
        rule = f"channels_last: {trainer.full_name} does not change the memory format"
        raise RuleError(rule, "leave it out, or use the trainer 'plain'")


def find_plain_only(spec: JobSpec) -> Iterator[str]:
    """Yield the fields of a job that memgate knows in its own loop alone, and another runs it."""
    if spec.trainer is not Trainer.PLAIN and spec.offload.is_given:
        yield "offload"


def _check_transformers(spec: JobSpec) -> None:
    if spec.model.source is not ModelSource.TRANSFORMERS:
        rule = f"trainer is {spec.trainer}: {spec.trainer.full_name} trains models of transformers"
        raise RuleError(rule, f"use 'plain' or 'lightning' for one of {spec.model.source}")
    if spec.loss is Loss.CONTRASTIVE:
        rule = f"loss: {spec.trainer.full_name} uses the loss that a model computes itself"
        raise RuleError(rule, "use the trainer 'plain' or 'lightning' for a contrastive one")
    if spec.ema:
        rule = f"ema: {spec.trainer.full_name} keeps no average of the weights"
        raise RuleError(rule, "leave it out, or use the trainer 'plain' or 'lightning'")
    if isinstance(spec.compile, CompileSpec):
        _check_compile(spec.compile, spec.trainer)
    quantized = spec.quantization
    if quantized is not None and quantized.library is not QuantizationLibrary.BITSANDBYTES:
        rule = f"quantization: {spec.trainer.full_name} trains what bitsandbytes quantised"
        raise RuleError(rule, "use one of its methods, or the trainer 'plain'")
    if spec.trainer is Trainer.TRL_SFT and quantized is not None and not quantized.prepare:
        rule = "quantization.prepare is false: trl's SFTTrainer prepares quantised models itself"
        raise RuleError(rule, "leave it out, or use the trainer 'hf'")


def _check_compile(compiled: CompileSpec, trainer: Trainer) -> None:
    """Refuse what ``TrainingArguments`` has no argument for."""
    others = compiled.model_fields_set - {"backend", "mode"}
    if others:
        rule = f"compile.{min(others)}: {trainer.full_name} can be told a backend and a mode"
        raise RuleError(rule, "leave it out, or use the trainer 'plain' or 'lightning'")


def _check_packing(spec: JobSpec) -> None:
    if not spec.packing:
        return
    if spec.model.source is not ModelSource.TRANSFORMERS or spec.input.sequence_length is None:
        rule = "packing: sequences of text are packed, up to 'input.sequence_length'"
        raise RuleError(rule, "give that length, or leave 'packing' out")
