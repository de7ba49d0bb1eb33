"""axolotl's YAML -> a spec. Its ``AxolotlTrainer`` is transformers' ``Trainer`` with more data.

Weights are loaded in the type of the training (``bf16``: bf16), unlike with a plain ``Trainer``.
Embeddings and norms are widened to fp32, and made narrow again for adapters and flash-attention.
"""

from __future__ import annotations

from typing import Any

from memgate.convert.draft import Draft
from memgate.convert.fields import Config
from memgate.convert.hf import (
    check_sharding,
    clean,
    find_kwargs,
    find_method,
    find_offload,
    put_checkpointing,
    put_fsdp,
    put_quantization,
)
from memgate.errors import UnsupportedJobError
from memgate.jobspec import Attention, Trainer

_LIGER = "some layers are liger-kernel's, without its fused loss"

#: older switches, one for each attention
_SWITCHES = {
    "flash_attention": Attention.FLASH,
    "sdp_attention": Attention.SDPA,
    "eager_attention": Attention.EAGER,
}
_OTHER_SWITCHES = ("xformers_attention", "flex_attention", "sage_attention")

_PREFERENCE = "rl"
_OTHER_TASKS = (_PREFERENCE, "reward_model", "process_reward_model")


def convert_axolotl(draft: Draft) -> None:
    """Fill a spec.

    Raises:
        UnsupportedJobError: if it is not a plain fine-tuning.
    """
    config = draft.config
    _check_task(config)
    draft.put_model("base_model")
    draft.put_length("sequence_len", default=512)
    draft.put("trainer", Trainer.HF)
    _put_batch(draft)
    draft.put_optimizer("optimizer", default="adamw_torch_fused")
    draft.put_clipping("max_grad_norm", default=1.0)
    draft.put("packing", config.flag("sample_packing"))
    config.get("pad_to_sequence_len")
    _put_attention(draft)
    _put_precision(draft)
    _put_checkpointing(draft)
    _put_adapter(draft)
    _doubt_widened(draft)
    _put_liger(draft)
    _put_evaluation(draft)
    draft.put_compile("torch_compile", backend="torch_compile_backend", mode="torch_compile_mode")
    _put_fsdp(draft)


def _check_task(config: Config) -> None:
    for name in _OTHER_TASKS:
        if given := config.get(name):
            raise UnsupportedJobError(
                f"{name} is {given}: a job spec describes a plain fine-tuning, not this; ask about"
                " the command itself: memgate run --gpu GPU -- axolotl train CONFIG"
            )


def _put_batch(draft: Draft) -> None:
    config = draft.config
    draft.put_batch("micro_batch_size", default=1, accumulation="gradient_accumulation_steps")
    whole = config.whole("batch_size")
    if whole is not None and "gradient_accumulation_steps" not in config:
        steps = whole // max(1, draft.spec["batch_size"])
        draft.put("gradient_accumulation_steps", steps if steps > 1 else None)


def _put_attention(draft: Draft) -> None:
    draft.put_attention("attn_implementation")
    for name, attention in _SWITCHES.items():
        if draft.config.flag(name):
            draft.put("attention", attention)
    for name in _OTHER_SWITCHES:
        if draft.config.flag(name):
            draft.config.refuse(name, "an attention that memgate does not have")


def _put_precision(draft: Draft) -> None:
    config = draft.config
    bf16, fp16 = config.get("bf16", False), config.flag("fp16")
    is_narrow = [config.flag("bfloat16"), config.flag("float16")]
    tf32 = config.flag("tf32")
    config.flag("float32")
    if bf16 == "auto":
        if not fp16:
            draft.assume("precision", "bf16: auto is bf16 on GPUs that have it, from Ampere on")
        bf16 = not fp16
    if bf16 or is_narrow[0]:
        draft.put("precision", "bf16")
    elif is_narrow[1] or fp16 or config.get("load_in_8bit"):
        draft.put("precision", "fp16")
    else:
        draft.put("precision", "tf32" if tf32 else None)


def _put_checkpointing(draft: Draft) -> None:
    config = draft.config
    given = config.get("gradient_checkpointing", False)
    draft.put("gradient_checkpointing", bool(given))
    offloads = config.get("activation_offloading", False)
    if offloads or str(given).startswith("offload"):
        draft.offload("activations")
    if given == "offload_disk" or offloads == "disk":
        config.refuse("gradient_checkpointing", "activations are written to a disk")
    put_checkpointing(config)


def _put_adapter(draft: Draft) -> None:
    config = draft.config
    adapter = config.get("adapter")
    targets = config.get("lora_target_modules")
    if config.flag("lora_target_linear"):
        targets = "all-linear"
    method = find_method(config, dora="peft_use_dora", rslora="peft_use_rslora")
    made: dict[str, Any] = {
        "method": method or ("lora" if adapter == "qlora" else adapter),
        "rank": config.whole("lora_r"),
        "alpha": config.number("lora_alpha"),
        "dropout": config.number("lora_dropout"),
        "target_modules": targets,
        "kwargs": find_kwargs(
            config,
            modules_to_save="lora_modules_to_save",
            layers_to_transform="peft_layers_to_transform",
            layers_pattern="peft_layers_pattern",
            rank_pattern="lora_rank_pattern",
            alpha_pattern="lora_alpha_pattern",
        ),
    }
    if adapter:
        draft.put("lora", clean(made))
    kept = config.below("bnb_config_kwargs")
    put_quantization(
        draft,
        four="load_in_4bit",
        eight="load_in_8bit",
        method=kept.get("bnb_4bit_quant_type", "nf4"),
        double=kept.get("bnb_4bit_use_double_quant", True),
        prepare=False,
    )


def _doubt_widened(draft: Draft) -> None:
    """Of a full fine-tuning, embeddings and norms stay in fp32 unless flash-attention is used."""
    is_narrow = draft.spec.get("precision") in ("bf16", "fp16")
    if is_narrow and "lora" not in draft.spec and draft.spec.get("attention") != Attention.FLASH:
        why = "all weights in 16 bits; axolotl keeps embeddings and norms in fp32 here"
        draft.assume("precision", why, can_matter=True)


def _put_liger(draft: Draft) -> None:
    """A spec's ``liger`` is all of it; without the fused loss the logits are there as usual."""
    config = draft.config
    plugins = config.get("plugins", [])
    names = plugins if isinstance(plugins, list) else [plugins]
    others = [str(one).rpartition(".")[2] for one in names if not str(one).endswith("LigerPlugin")]
    if others:
        config.refuse("plugins", f"{', '.join(others)}: plugins that memgate does not run")
    layers = [name for name in config.names if name.startswith("liger_") and config.flag(name)]
    if config.flag("liger_fused_linear_cross_entropy"):
        draft.put("liger", True)
        return
    for name in layers:
        config.refuse(name, _LIGER)


def _put_evaluation(draft: Draft) -> None:
    config = draft.config
    size = config.whole("eval_batch_size", draft.spec["batch_size"])
    share = config.number("val_set_size", 0)
    packs = draft.spec.get("packing", False)
    is_alike = config.flag("eval_sample_packing", default=packs) == packs
    if share or config.get("test_datasets"):
        draft.put("eval", {"batch_size": size})
        if not is_alike:
            config.refuse("eval_sample_packing", "evaluations have other batches than the training")


def _put_fsdp(draft: Draft) -> None:
    config = draft.config
    version = config.get("fsdp_version") or config.get("fsdp_config.fsdp_version")
    is_divided = put_fsdp(draft, version=version)
    inner = [name for name in config.names if name.startswith("fsdp_config.")]
    if inner and not is_divided:
        strategy = "fsdp2" if str(version) == "2" else "fsdp"
        draft.put_workers(strategy, "FSDP", **find_offload(config))
        check_sharding(config)
    names = ("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
    if any(list(map(config.flag, names))):  # all are looked at
        draft.put("gradient_checkpointing", True)
