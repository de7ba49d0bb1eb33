"""What of a job cannot be run on many GPUs yet, field by field: refused, never left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memgate.jobspec.distributed import DistributedSpec, Strategy
from memgate.jobspec.model import ModelSource
from memgate.jobspec.training import Precision, Trainer

if TYPE_CHECKING:
    from memgate.jobspec.spec import JobSpec

#: strategies that each library's trainer knows, as memgate starts it
_OF_TRAINERS = {
    Trainer.PLAIN: tuple(Strategy),
    Trainer.HF: (Strategy.DDP, Strategy.FSDP, Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3),
    Trainer.TRL_SFT: (Strategy.DDP, Strategy.FSDP, Strategy.FSDP2, Strategy.ZERO2, Strategy.ZERO3),
    Trainer.LIGHTNING: (),
}


def find_undivided(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the fields of a job that memgate cannot run with its ``distributed``, and with what."""
    divided = spec.distributed
    if divided is None:
        return
    strategy = f"distributed.strategy {divided.strategy}"
    if divided.strategy not in _OF_TRAINERS[spec.trainer]:
        yield "distributed.strategy", f"the trainer {spec.trainer}"
    if spec.trainer is not Trainer.PLAIN:
        yield from (
            (f"distributed.{field}", f"the trainer {spec.trainer}") for field in _own(divided)
        )
    given = {
        "compile": spec.compile is not False,
        "ema": spec.ema,
        "offload": spec.offload.optimizer,
    }
    if not divided.strategy.is_by_ddp:
        given |= {
            "quantization": spec.quantization is not None,
            "save": spec.save and spec.trainer is Trainer.PLAIN,
            "eval": spec.eval is not None and spec.eval.generate is not None,
            "channels_last": spec.channels_last,
        }
    if divided.strategy is Strategy.ZERO1:
        given |= {"save": spec.save}
    yield from ((field, strategy) for field, is_given in given.items() if is_given)
    if divided.tensor_degree > 1 or divided.strategy is Strategy.PP:
        yield from _find_undivided_layers(spec, divided, strategy)


#: fields that trainers are not told: they decide themselves
_OF_THE_PLAIN_LOOP = (
    *("mixed_precision", "gradient_as_bucket_view", "static_graph", "no_sync", "use_orig_params"),
    *("tp_degree",),
)


def _own(divided: DistributedSpec) -> Iterator[str]:
    for field in _OF_THE_PLAIN_LOOP:
        if getattr(divided, field) != DistributedSpec.model_fields[field].default:
            yield field


def _find_undivided_layers(
    spec: JobSpec, divided: DistributedSpec, strategy: str
) -> Iterator[tuple[str, str]]:
    """Yield what cannot be run where layers are divided, or the model is cut into stages."""
    if spec.model.source is not ModelSource.TRANSFORMERS:
        yield "model", f"{strategy}, which is for models of transformers"
    given = {
        "lora": spec.lora is not None,
        "liger": spec.liger,
        "packing": spec.packing,
        "precision": spec.precision is Precision.AMP_FP16,
        "input": spec.input.varies,
        "clip_grad_norm": bool(spec.clip_grad_norm),
    }
    yield from ((field, strategy) for field, is_given in given.items() if is_given)
    if divided.strategy is Strategy.PP:
        of_stages = {
            "eval": spec.eval is not None,
            "gradient_accumulation_steps": spec.gradient_accumulation_steps > 1,
            "precision": spec.precision is Precision.AMP_BF16,
        }
        yield from ((field, strategy) for field, is_given in of_stages.items() if is_given)
