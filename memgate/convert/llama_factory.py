"""LLaMA-Factory's YAML -> a spec. Its ``sft`` and ``pt`` are transformers' Trainer with more data.

What it does that a plain ``Trainer`` does not: the model is loaded in the type of the training,
what is trained is widened to fp32 unless ``pure_bf16`` is set, and gradient checkpointing is on
unless it is disabled.
"""

from __future__ import annotations

from typing import Any

from memgate.convert import training_arguments
from memgate.convert.draft import Draft
from memgate.convert.fields import Config, Knowledge, names
from memgate.convert.hf import (
    clean,
    find_kwargs,
    find_method,
    put_checkpointing,
    put_default_optimizer,
    put_evaluation,
    put_fsdp,
)
from memgate.errors import UnsupportedJobError
from memgate.jobspec import Trainer

_OPTIMIZER = "another optimizer"
_IMAGES = "images or videos are fed, too"

KNOWN = (
    Knowledge(
        harmless=names(
            """
        template dataset_dir media_dir eval_dataset max_samples tokenized_path mix_strategy
        interleave_probs buffer_size preprocessing_batch_size default_system enable_thinking
        preserve_thinking tool_format mask_history train_on_prompt ignore_pad_token_for_loss
        data_shared_file_system disable_shuffling val_size eval_on_each_dataset plot_loss
        compute_accuracy print_param_status adapter_name_or_path adapter_folder create_new_adapter
        hf_hub_token ms_hub_token om_hub_token split_special_tokens init_special_tokens export_dir
        export_size export_device export_legacy_format export_hub_model_id loraplus_lr_ratio
        loraplus_lr_embedding early_stopping_steps ray_run_name ray_storage_path ray_num_workers
        ray_init_kwargs resources_per_worker placement_strategy swanlab_project use_swanlab
        swanlab_run_name swanlab_workspace swanlab_mode swanlab_api_key swanlab_logdir infer_backend
        infer_dtype offload_folder use_reentrant_gc freeze_extra_modules
        include_effective_tokens_per_second master_addr master_port badam_verbose use_kv_cache
        skip_special_tokens
"""
        ),
        matters={
            "freeze_vision_tower": "which part of a model with images is trained",
            "freeze_multi_modal_projector": "which part of a model with images is trained",
            "freeze_language_model": "which part of a model with images is trained",
            "image_max_pixels": _IMAGES,
            "image_min_pixels": _IMAGES,
            "video_max_pixels": _IMAGES,
            "video_min_pixels": _IMAGES,
            "video_maxlen": _IMAGES,
            "video_fps": _IMAGES,
            "audio_sampling_rate": "sound is fed, too",
            "use_galore": _OPTIMIZER,
            "galore_layerwise": _OPTIMIZER,
            "galore_target": _OPTIMIZER,
            "galore_rank": _OPTIMIZER,
            "galore_scale": _OPTIMIZER,
            "use_apollo": _OPTIMIZER,
            "apollo_layerwise": _OPTIMIZER,
            "apollo_target": _OPTIMIZER,
            "apollo_rank": _OPTIMIZER,
            "apollo_scale": _OPTIMIZER,
            "apollo_scale_type": _OPTIMIZER,
            "use_badam": _OPTIMIZER,
            "badam_mode": _OPTIMIZER,
            "badam_switch_mode": _OPTIMIZER,
            "badam_switch_interval": _OPTIMIZER,
            "badam_update_ratio": _OPTIMIZER,
            "use_adam_mini": _OPTIMIZER,
            "use_llama_pro": "layers are added",
            "mixture_of_depths": "layers are skipped",
            "use_unsloth": "unsloth's kernels",
            "use_unsloth_gc": "unsloth's checkpointing, which keeps activations on the host",
            "use_v1_kernels": "other kernels",
            "use_kt": "experts are computed on the host",
            "kt_config": "experts are computed on the host",
            "kt_cpu_activation": "experts are computed on the host",
            "use_mca": "Megatron's trainer",
            "use_megatron_bridge": "Megatron's trainer",
            "use_hyper_parallel": "another trainer",
            "upcast_layernorm": "norms in fp32",
            "upcast_lmhead_output": "logits in fp32",
            "shift_attn": "another attention",
            "block_diag_attn": "another attention",
            "rope_scaling": "how the model is made",
            "resize_vocab": "embeddings are made larger",
            "add_tokens": "embeddings are made larger",
            "add_special_tokens": "embeddings are made larger",
            "new_special_tokens_config": "embeddings are made larger",
            "moe_aux_loss_coef": "a further loss is computed",
            "pissa_init": "each weight is decomposed when the adapter is made",
            "pissa_iter": "each weight is decomposed when the adapter is made",
            "pissa_convert": "each weight is decomposed when the adapter is made",
            "use_dft_loss": "another loss",
            "use_asft_loss": "another loss, with a second model",
            "asft_alpha": "another loss, with a second model",
            "use_eaft_loss": "another loss",
            "eaft_alpha": "another loss",
            "fp8": "arithmetic in 8 bits",
            "fp8_backend": "arithmetic in 8 bits",
            "fp8_enable_fsdp_float8_all_gather": "weights are sent in 8 bits",
            "quantization_device_map": "the model is spread over GPUs",
            "device_map": "the model is spread over GPUs",
            "module_dropout": "dropout of an adapter",
            "enable_torch_profiler": "a profiler keeps what it records",
        },
    )
    | training_arguments.KNOWN
)

_STAGES = ("sft", "pt")
_ELSEWHERE = "ask about the command itself: memgate run --gpu GPU -- llamafactory-cli train CONFIG"


def convert_llama_factory(draft: Draft) -> None:
    """Fill a spec.

    Raises:
        UnsupportedJobError: if it is another stage than pre-training and fine-tuning, or trains a
            part of the model that a spec cannot name.
    """
    config = draft.config
    stage = config.get("stage", "sft")
    if stage not in _STAGES:
        raise UnsupportedJobError(
            f"stage is {stage}: a job spec describes pt and sft alone; {_ELSEWHERE}"
        )
    draft.put_model("model_name_or_path")
    draft.put_length("cutoff_len", default=2048)
    draft.put("trainer", Trainer.HF)
    draft.put_batch(
        "per_device_train_batch_size", default=8, accumulation="gradient_accumulation_steps"
    )
    _put_optimizer(draft)
    draft.put_clipping("max_grad_norm", default=1.0)
    packs = config.flag("packing", default=stage == "pt") or config.flag("neat_packing")
    draft.put("packing", packs)
    draft.put_attention("flash_attn")
    _put_checkpointing(draft)
    _put_adapter(draft)
    _put_precision(draft)
    _put_quantization(draft)
    draft.put("liger", config.flag("enable_liger_kernel"))
    draft.put_compile("torch_compile", backend="torch_compile_backend", mode="torch_compile_mode")
    put_evaluation(draft)
    put_fsdp(draft)


def _put_optimizer(draft: Draft) -> None:
    put_default_optimizer(draft)
    if draft.config.flag("use_muon"):
        draft.put("optimizer", {"name": "Muon"})
        draft.assume("optimizer", "torch's own Muon in place of LLaMA-Factory's", can_matter=True)


def _put_checkpointing(draft: Draft) -> None:
    """Computing activations again is on unless it is disabled, whatever the Trainer is told."""
    config = draft.config
    config.get("gradient_checkpointing")
    put_checkpointing(config)
    is_off = config.flag("disable_gradient_checkpointing")
    draft.put("gradient_checkpointing", not is_off)


def _put_adapter(draft: Draft) -> None:
    config = draft.config
    kind = config.get("finetuning_type", "lora")
    rank = config.whole("lora_rank", 8)
    method = find_method(config, dora="use_dora", rslora="use_rslora")
    extra = find_kwargs(config, modules_to_save="additional_target")
    made: dict[str, Any] = {
        "method": method,
        "rank": rank,
        "alpha": config.number("lora_alpha"),
        "dropout": config.number("lora_dropout"),
        "target_modules": _find_targets(config, "lora_target"),
        "kwargs": {name: _split(value) for name, value in extra.items()},
    }
    if kind == "oft":
        block = {"oft_block_size": config.whole("oft_block_size", 32)}
        targets = _find_targets(config, "oft_target")
        made = {"method": "oft", "target_modules": targets, "kwargs": block}
    elif kind not in ("lora", "full"):
        raise UnsupportedJobError(
            f"finetuning_type is {kind}: a job spec describes full, lora and oft; {_ELSEWHERE}"
        )
    if kind != "full":
        draft.put("lora", clean(made))


def _find_targets(config: Config, name: str) -> Any:
    given = config.get(name, "all")
    return "all-linear" if given == "all" else _split(given)


def _split(given: Any) -> Any:
    return [one.strip() for one in given.split(",")] if isinstance(given, str) else given


def _put_precision(draft: Draft) -> None:
    config = draft.config
    pure = config.flag("pure_bf16")
    bf16, fp16 = config.flag("bf16"), config.flag("fp16")
    config.flag("tf32")
    narrow = "bf16" if pure or bf16 else "fp16" if fp16 else None
    if narrow and not pure and "lora" not in draft.spec:
        narrow = f"amp-{narrow}"
    draft.put("precision", narrow)


def _put_quantization(draft: Draft) -> None:
    config = draft.config
    bits = config.whole("quantization_bit")
    method = config.get("quantization_method", "bnb")
    double = config.flag("double_quantization", default=True)
    kind = config.get("quantization_type", "nf4")
    if bits is None:
        return
    if method not in ("bnb", "bitsandbytes") or bits not in (4, 8) or "lora" not in draft.spec:
        config.refuse("quantization_bit", f"{bits} bits by {method}: memgate does not have it")
        return
    kept = {"method": kind} | clean({"double": double}) if bits == 4 else {"method": "int8"}
    draft.put("quantization", kept | {"prepare": False})
