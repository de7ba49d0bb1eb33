"""JobSpec -> the arguments of transformers' trainers, whatever their version calls them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from memgate.errors import InputError
from memgate.jobspec import JobSpec, Precision, Trainer
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.between_steps import steps_between
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
    try:
        return kind(**wanted, **given)
    except ValueError as error:  # such as of bfloat16 on a GPU that does not have it
        rule = f"{spec.trainer.full_name} refuses the job: {' '.join(str(error).split())}"
        mistake = Mistake(field="trainer", value=show_value(spec.trainer.value), rule=rule)
        raise InputError.from_mistakes(mistake) from error


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
    }
