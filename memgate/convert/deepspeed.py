"""A DeepSpeed JSON beside a trainer's config -> ``distributed``, ``offload`` and precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memgate.convert.draft import Draft
from memgate.convert.fields import Config, Knowledge, names

_ZERO = "zero_optimization"
_BUFFERS = "the size of a buffer that DeepSpeed keeps"

_OFFLOADED = (
    "the optimizer's state is kept in the host's memory, which a spec cannot say of a job that is"
    " divided: the spec has it on the GPU, and needs more"
)
_NOT_DEEPSPEED = (
    "PyTorch's own division stands for DeepSpeed's, which has larger buffers and copies in fp32 of"
    " its own; to be certain, ask about the command: memgate run --nproc N -- deepspeed SCRIPT"
)

KNOWN = Knowledge(
    open_value="auto",
    harmless=names(
        """
        wall_clock_breakdown steps_per_print dump_state memory_breakdown tensorboard wandb
        csv_monitor comms_logger flops_profiler train_batch_size scheduler prescale_gradients
        checkpoint zero_force_ds_cpu_optimizer zero_allow_untested_optimizer fp16.auto_cast
        fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis
        fp16.min_loss_scale fp16.consecutive_hysteresis
"""
    )
    | frozenset(
        {
            *(
                f"{_ZERO}.offload_{what}.{how}"
                for what in ("optimizer", "param")
                for how in ("pin_memory", "nvme_path", "buffer_count", "fast_init")
            ),
            f"{_ZERO}.ignore_unused_parameters",
        }
    ),
    matters={
        f"{_ZERO}.{name}": why
        for name, why in {
            "overlap_comm": "a second buffer while gradients are sent",
            "contiguous_gradients": "gradients are copied into one buffer",
            "reduce_scatter": "how gradients are reduced",
            "allgather_partitions": "how weights are collected",
            "round_robin_gradients": "where gradients lie",
            "reduce_bucket_size": _BUFFERS,
            "allgather_bucket_size": _BUFFERS,
            "sub_group_size": "how much is stepped at a time",
            "stage3_prefetch_bucket_size": _BUFFERS,
            "stage3_param_persistence_threshold": "weights below it stay on each GPU",
            "stage3_max_live_parameters": "how many weights are on the GPU at a time",
            "stage3_max_reuse_distance": "how long weights stay on the GPU",
            "max_live_parameters": "how many weights are on the GPU at a time",
            "max_reuse_distance": "how long weights stay on the GPU",
            "stage3_gather_16bit_weights_on_model_save": "all weights are collected to save them",
            "gather_16bit_weights_on_model_save": "all weights are collected to save them",
            "offload_param": "weights are kept in the host's memory",
            "zero_hpz_partition_size": "a second copy of the weights",
            "zero_quantized_weights": "weights are sent in few bits",
            "zero_quantized_gradients": "gradients are sent in few bits",
        }.items()
    }
    | {
        "optimizer": "DeepSpeed's own optimizer",
        "activation_checkpointing": "DeepSpeed's own checkpointing",
        "communication_data_type": "the type of what is sent",
        "data_types": "the type of accumulated gradients",
        "compile": "DeepSpeed compiles the model",
        "tensor_parallel": "weights are divided",
        "autotp_size": "weights are divided",
        "sparse_attention": "another attention",
        "amp": "apex's mixed precision",
    },
)


def read_deepspeed(document: Mapping[str, Any]) -> Config:
    """Return the fields of a DeepSpeed file; their names say that they are DeepSpeed's."""
    return Config(document, inside="deepspeed: ")


def put_deepspeed(draft: Draft, deepspeed: Config) -> None:
    """Add what DeepSpeed does to a spec that has all but that.

    Raises:
        InputError: if a field is wrong.
    """
    stage = deepspeed.whole(f"{_ZERO}.stage", 0)
    if stage not in range(4):
        raise deepspeed.wrong(f"{_ZERO}.stage", stage, "it must be 0, 1, 2 or 3")
    offloads = {
        what: deepspeed.get(f"{_ZERO}.offload_{what}.device", "none") in ("cpu", "nvme")
        for what in ("optimizer", "param")
    }
    if offloads["param"] and stage == 3:  # and with them what is made of them
        draft.put_workers("zero3", "DeepSpeed", cpu_offload=True)
    else:
        draft.put_workers(f"zero{stage}" if stage else "ddp", "DeepSpeed")
        if offloads["param"]:
            deepspeed.refuse(f"{_ZERO}.offload_param", "weights are kept in the host's memory")
        if offloads["optimizer"]:
            deepspeed.refuse(f"{_ZERO}.offload_optimizer", _OFFLOADED)
    if stage and "distributed" in draft.spec:
        draft.assume("distributed", _NOT_DEEPSPEED, can_matter=True)
    _put_precision(draft, deepspeed, divides_weights=stage in (2, 3))
    _put_sizes(draft, deepspeed)


def _put_precision(draft: Draft, deepspeed: Config, *, divides_weights: bool) -> None:
    """DeepSpeed makes the model itself 16 bits wide, and keeps its own copy in fp32.

    Where gradients are divided, FSDP stands for it, and does so if the job says ``amp-``.
    """
    trained = draft.spec.get("precision", "fp32")
    for name in ("bf16", "fp16"):
        enabled = deepspeed.get(f"{name}.enabled", False)
        if enabled is True or (enabled == "auto" and trained.endswith(name)):
            draft.spec["precision"] = f"amp-{name}" if divides_weights else name


def _put_sizes(draft: Draft, deepspeed: Config) -> None:
    """Check what is said twice: numbers must be those of the trainer, which says them, too."""
    for name, field in (
        ("train_micro_batch_size_per_gpu", "batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("gradient_clipping", "clip_grad_norm"),
    ):
        given = deepspeed.get(name, "auto")
        if given != "auto" and given != draft.spec.get(field, 1):
            rule = f"the trainer says {draft.spec.get(field, 1)}, and the two must agree"
            raise deepspeed.wrong(name, given, rule, 'write "auto", or the same in both')
