"""JobSpec -> the model that it describes, with the attention that it asks for."""

from __future__ import annotations

from typing import Any

import torch

from memgate.errors import InputError, JobFailedError
from memgate.jobspec import Attention, JobSpec, ModelSource, ModelSpec
from memgate.mistakes import Mistake, show_value
from memgate_worker.jobs.classes import find_class
from memgate_worker.jobs.configs import find_config
from memgate_worker.jobs.libraries import need_library

#: what transformers calls it
_NAMES = {
    Attention.SDPA: "sdpa",
    Attention.FLASH: "flash_attention_2",
    Attention.EAGER: "eager",
}

#: how classes of transformers say that they have it; the first name is that of version 5
_SWITCHES = {
    Attention.SDPA: ("_supports_sdpa",),
    Attention.FLASH: ("_supports_flash_attn", "_supports_flash_attn_2"),
}

#: that flash-attn has kernels for
_LEAST_CAPABILITY = (8, 0)


def choose_attention(spec: JobSpec) -> ModelSpec:
    """Return a job's model with the attention that the job asks for.

    Raises:
        InputError: if the model's class cannot do it, with what it can.
        JobFailedError: if the GPU has no kernels for it.
        LibraryMissingError: if the runtime lacks flash-attn, and the stand-in for it.
    """
    if spec.model.source is not ModelSource.TRANSFORMERS:
        return spec.model
    if spec.uses_flash_attention:
        need_library("flash_attn", "attention")
        _check_gpu()
    if spec.attention is Attention.AUTO:
        return spec.model
    class_name, _ = find_config(spec.model)
    known = _choices(find_class(class_name))
    if spec.attention not in known:
        raise InputError.from_mistakes(
            Mistake(
                field="attention",
                value=show_value(spec.attention.value),
                rule=f"{class_name} has no such implementation of attention",
                next_step=f"it has: {', '.join(known)}",
            )
        )
    config = spec.model.config | {"attn_implementation": _NAMES[spec.attention]}
    return spec.model.model_copy(update={"config": config})


def _choices(model_class: Any) -> list[Attention]:
    return [
        one
        for one in Attention
        if one not in _SWITCHES
        or any(getattr(model_class, switch, False) for switch in _SWITCHES[one])
    ]


def _check_gpu() -> None:
    capability = torch.cuda.get_device_capability()
    if capability < _LEAST_CAPABILITY:
        raise JobFailedError(
            "attention: flash-attn has no kernels for GPUs of compute capability"
            f" {'.'.join(map(str, capability))}: there the job would die of 'FlashAttention only"
            " supports Ampere GPUs or newer'; use 'sdpa', or a GPU of 8.0 or later"
        )
