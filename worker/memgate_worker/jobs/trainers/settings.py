"""JobSpec -> the arguments of transformers' trainers, whatever their version calls them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from memgate.errors import InputError
from memgate.jobspec import DistributedSpec, JobSpec, Precision, Strategy, Trainer, Wrap
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.between_steps import steps_between
from memgate_worker.jobs.compiling import check_compile
from memgate_worker.jobs.tasks.varying import num_iterations

#: what versions of transformers before 4.41 call it
_OLDER_NAMES = {"eval_strategy": "evaluation_strategy"}


def make_arguments(kind: type[Any], spec: JobSpec, folder: Path, **more: Any) -> Any:
    """Make ``TrainingArguments``, or arguments of a kind that is built on them.

    Args:
        kind: their class; what is in ``more`` and it does not have is left out.
        spec: the job.
        folder: where it may write.
        more: what only this kind has.

    Raises:
        InputError: if the library refuses them.
    """
    known = {field.name for field in fields(kind)}
    wanted = _arguments(spec, folder)
    if spec.trainer is Trainer.TRL_SFT and spec.precision is Precision.BF16:
        del wanted["bf16"]  # newer versions autocast such models, too, unless they are told not to
    for name, older in _OLDER_NAMES.items():
        if name not in known:
            wanted[older] = wanted.pop(name)
    given = {name: value for name, value in more.items() if name in known}
    if spec.distributed is not None:
        given |= _divided(spec.distributed)
    try:
        return kind(**wanted, **given)
    except ValueError as error:  # such as of bfloat16 on a GPU that does not have it
        rule = f"{spec.trainer.full_name} refuses the job: {' '.join(str(error).split())}"
        mistake = Mistake(field="trainer", value=show_value(spec.trainer.value), rule=rule)
        raise InputError.from_mistakes(mistake) from error


def _divided(spec: DistributedSpec) -> dict[str, Any]:
    """Return how the trainer divides a job: by FSDP as it is told, otherwise by DDP."""
    if spec.strategy.is_by_ddp:
        return {
            "ddp_bucket_cap_mb": spec.bucket_cap_mb,
            "ddp_find_unused_parameters": spec.find_unused_parameters,
        }
    words = ["full_shard" if spec.drops_weights else "shard_grad_op"]
    if spec.cpu_offload:
        words.append("offload")
    config: dict[str, Any] = {"version": 2 if spec.strategy is Strategy.FSDP2 else 1}
    if spec.wrap is Wrap.SIZE:
        config["min_num_params"] = spec.least_parameters
    if spec.wrap is not Wrap.NONE:
        words.append("auto_wrap")
    if spec.wrap_classes:
        config["transformer_layer_cls_to_wrap"] = list(spec.wrap_classes)
    if spec.strategy is Strategy.FSDP2:
        config["reshard_after_forward"] = spec.drops_weights
    return {"fsdp": " ".join(words), "fsdp_config": config}


def _arguments(spec: JobSpec, folder: Path) -> dict[str, Any]:
    """Return what every version has; nothing is logged, reported or pushed."""
    every = steps_between(spec)
    evaluated = spec.eval.batch_size if spec.eval is not None else None
    return {
        "output_dir": str(folder),
        "max_steps": num_iterations(spec),
        "per_device_train_batch_size": spec.batch_size,
        "per_device_eval_batch_size": evaluated or spec.batch_size,
        "gradient_accumulation_steps": spec.gradient_accumulation_steps,
        "gradient_checkpointing": spec.gradient_checkpointing,
        "max_grad_norm": spec.clip_grad_norm,
        "bf16": spec.precision is Precision.AMP_BF16,
        "fp16": spec.precision is Precision.AMP_FP16,
        "eval_strategy": "steps" if spec.eval is not None else "no",
        "eval_steps": every,
        "save_strategy": "steps" if spec.save else "no",
        "save_steps": every,
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **_compiling(spec),
    }


def _compiling(spec: JobSpec) -> dict[str, Any]:
    """Return what has a trainer compile the model, if the job asks for it."""
    asked = check_compile(spec.compile)
    if asked is None:
        return {}
    return {
        "torch_compile": True,
        "torch_compile_backend": asked.backend,
        "torch_compile_mode": asked.mode,
    }
