"""``TrainingArguments`` of transformers, or ``SFTConfig`` of TRL, with the model -> a spec.

As ``HfArgumentParser`` takes them: one file with the fields of several classes. A model is usually
in ``ModelArguments`` of the script, an adapter in ``ModelConfig`` of TRL.
"""

from __future__ import annotations

from typing import Any

from memgate.convert import training_arguments
from memgate.convert.draft import Draft
from memgate.convert.fields import Config, Knowledge, names
from memgate.convert.tasks import put_task
from memgate.convert.training_arguments import FSDP
from memgate.errors import UnsupportedJobError
from memgate.jobspec import Trainer

KNOWN = training_arguments.KNOWN | Knowledge(
    harmless=names(
        """
        lora_task_type dataset_mixture dataset_mixer dataset_splits dataset_configs chat_template
        tokenizer_name_or_path dataset_id_or_path ignore_bias_buffers benchmarks callbacks
        system_prompt wandb_entity wandb_project wandb_run_group wandb_log_unique_prompts
        """
    ),
    matters={
        "lora_target_parameters": "adapters of single parameters",
        "bnb_4bit_quant_storage": "the type in which 4-bit weights are stored",
        "spectrum_config_path": "some weights are frozen",
    },
)

#: fields of TRL's other trainers: of preferences, and of rewards
_OTHER_TASKS = names(
    """
    beta max_prompt_length max_completion_length num_generations reward_funcs reward_weights
    reward_model_path precompute_ref_log_probs sync_ref_model desirable_weight
    """
)

_WEIGHTS_OPEN = (
    "weights in fp32, as transformers 4 loads them; transformers 5 loads them as they were saved."
    " If that is bf16, write precision: bf16 (or torch_dtype in the config)"
)


def convert_hf(draft: Draft) -> None:
    """Fill a spec from the fields of a ``Trainer``."""
    draft.put_model("model_name_or_path", "model_name", "model")
    put_task(draft)
    draft.put_length("max_seq_length", "max_length", "block_size", "model_max_length")
    _put_training(draft, Trainer.HF)
    put_training_precision(draft, draft.find_dtype("torch_dtype", "dtype"))
    _put_adapter(draft, usual="fp4")


def convert_trl(draft: Draft) -> None:
    """Fill a spec from the fields of TRL's ``SFTTrainer``; bf16 and checkpointing are its default.

    A default of TRL differs from that of transformers where the class itself sets it.

    Raises:
        UnsupportedJobError: if it is the config of another trainer of TRL.
    """
    if others := [name for name in draft.config.names if name in _OTHER_TASKS]:
        raise UnsupportedJobError(
            f"{others[0]}: this is for another trainer of TRL, and a job spec describes SFT alone;"
            " ask about the command itself: memgate run --gpu GPU -- trl dpo --config CONFIG"
        )
    draft.put_model("model_name_or_path", "model_name", "model")
    draft.put_length("max_length", "max_seq_length", default=1024)
    _put_training(draft, Trainer.TRL_SFT)
    draft.put("packing", draft.config.flag("packing"))
    if draft.config.flag("activation_offloading"):
        draft.offload("activations")
    dtype = draft.find_dtype("torch_dtype", "dtype")
    put_training_precision(draft, "fp32" if dtype is None else dtype, default=True)
    _put_adapter(draft, usual="nf4")


def _put_training(draft: Draft, trainer: Trainer) -> None:
    config = draft.config
    draft.put("trainer", trainer)
    draft.put_batch(
        "per_device_train_batch_size", default=8, accumulation="gradient_accumulation_steps"
    )
    put_default_optimizer(draft)
    draft.put_clipping("max_grad_norm", default=1.0)
    is_usual = trainer is Trainer.TRL_SFT
    checkpoints = config.flag("gradient_checkpointing", default=is_usual)
    draft.put("gradient_checkpointing", checkpoints)
    put_checkpointing(config)
    draft.put_attention("attn_implementation")
    liger = [config.flag(name) for name in ("use_liger_kernel", "use_liger")]
    draft.put("liger", any(liger))
    draft.put_compile("torch_compile", backend="torch_compile_backend", mode="torch_compile_mode")
    put_evaluation(draft)
    put_fsdp(draft)


def put_default_optimizer(draft: Draft) -> None:
    """Set the optimizer that ``optim`` names, or the Trainer's own."""
    if "optim" not in draft.config:
        draft.assume("optimizer", "fused AdamW: the Trainer's own choice with torch 2.8 or newer")
    draft.put_optimizer("optim", default="adamw_torch_fused")


def put_checkpointing(config: Config) -> None:
    """Look at how activations are computed again: that one way is a little leaner is known."""
    config.get("gradient_checkpointing_kwargs.use_reentrant")
    config.get("gradient_checkpointing_kwargs")


def put_evaluation(draft: Draft) -> None:
    """Set the evaluation, if there is one."""
    config = draft.config
    strategy = config.first("eval_strategy", "evaluation_strategy")
    asked = config.flag("do_eval")
    wanted = asked if strategy is None else strategy not in ("no", False)
    size = config.whole("per_device_eval_batch_size", 8)
    if wanted:
        draft.put("eval", {"batch_size": size})


def put_training_precision(draft: Draft, dtype: str | None, *, default: bool = False) -> None:
    """Set the precision of weights that are loaded as ``dtype`` and trained as the Trainer does."""
    config = draft.config
    fp16 = config.flag("fp16")
    bf16 = config.flag("bf16", default=default and not fp16)
    tf32 = config.flag("tf32")
    if not dtype:
        draft.assume("precision", _WEIGHTS_OPEN, can_matter=True)
    if dtype in ("bf16", "fp16"):
        draft.put("precision", dtype)
    elif bf16 or fp16:
        draft.put("precision", "amp-bf16" if bf16 else "amp-fp16")
    else:
        draft.put("precision", "tf32" if tf32 else None)


#: of TRL's ``ModelConfig``, unless given
_LORA_DROPOUT = 0.05


def _put_adapter(draft: Draft, *, usual: str) -> None:
    config = draft.config
    rank = config.whole("lora_r")
    adapter: dict[str, Any] = {
        "method": find_method(config, dora="use_dora", rslora="use_rslora"),
        "rank": rank or 16,
        "alpha": config.number("lora_alpha"),
        "dropout": config.number("lora_dropout", _LORA_DROPOUT),
        "target_modules": config.get("lora_target_modules"),
        "kwargs": find_kwargs(config, modules_to_save="lora_modules_to_save"),
    }
    if config.flag("use_peft", default=rank is not None):
        draft.put("lora", clean(adapter))
    put_quantization(
        draft,
        four="load_in_4bit",
        eight="load_in_8bit",
        method=config.get("bnb_4bit_quant_type", usual),
        double=config.flag("use_bnb_nested_quant") or config.flag("bnb_4bit_use_double_quant"),
        compute=draft.find_dtype("bnb_4bit_compute_dtype"),
        # TRL's trainer prepares such models as its version does
        prepare=draft.spec.get("trainer") == "trl-sft",
    )


def find_method(config: Config, *, dora: str, rslora: str) -> str | None:
    """Return the method of an adapter; two switches have a name of their own."""
    methods = [name for name, field in {"dora": dora, "rslora": rslora}.items()
               if config.flag(field)]  # fmt: skip
    if len(methods) == 2:
        config.refuse(rslora, "dora and rslora at once")
    return methods[0] if methods else None


def find_kwargs(config: Config, **names: str) -> dict[str, Any]:
    """Return what is passed to peft as it is: its argument, and the field that has it."""
    given = {argument: config.get(field) for argument, field in names.items()}
    return {argument: value for argument, value in given.items() if value}


def clean(part: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not given, or is nothing."""
    return {name: value for name, value in part.items() if value not in (None, 0, {}, False)}


def put_quantization(
    draft: Draft,
    *,
    four: str,
    eight: str,
    method: str,
    double: bool,
    compute: str | None = None,
    prepare: bool = True,
) -> None:
    """Set how the weights below an adapter are kept; without one the field stays unused."""
    bits = [name for name in (four, eight) if draft.config.flag(name)]
    if not bits:
        return
    if "lora" not in draft.spec:
        draft.config.refuse(bits[0], "quantised weights cannot be trained, and there is no adapter")
        return
    kept: dict[str, Any] = {"method": "int8"}
    if bits[0] == four:
        kept = {"method": method} | clean({"double": double, "compute": compute})
    draft.put("quantization", kept if prepare else kept | {"prepare": False})


def put_fsdp(draft: Draft, *, version: object = None) -> bool:
    """Set how FSDP divides the job, and say whether it does."""
    config = draft.config
    given = config.get("fsdp")
    words = given.split() if isinstance(given, str) else given
    if words is True:
        words = ["full_shard"]
    if not words:
        return False
    if not isinstance(words, list):
        raise config.wrong("fsdp", given, "it must be a list such as [full_shard, auto_wrap]")
    strategy = next((FSDP[word] for word in words if word in FSDP), "fsdp")
    is_second = str(version or config.get("fsdp_config.fsdp_version", 1)) == "2"
    more: dict[str, Any] = {}
    if strategy == "fsdp" and is_second:
        strategy = "fsdp2"
    elif strategy == "hsdp" and not is_second:
        more["fsdp_version"] = 1
    if "shard_grad_op" in words or "hybrid_shard_zero2" in words:
        more["reshard_after_forward"] = False
    if "offload" in words:
        more["cpu_offload"] = True
    draft.put_workers(strategy, "FSDP", **more | find_offload(config))
    check_sharding(config)
    return True


def find_offload(config: Config) -> dict[str, bool]:
    """Return whether FSDP keeps weights in the host's memory, by its own config."""
    names = ("fsdp_config.offload_params", "fsdp_config.fsdp_offload_params")
    return {"cpu_offload": True} if any(list(map(config.flag, names))) else {}


#: settings of FSDP, and the values with which it divides all it can, as a spec means it
_FULL_SHARD = {
    "sharding_strategy": ("FULL_SHARD", "full_shard", 1),
    "reshard_after_forward": (True, "FULL_SHARD"),
    "limit_all_gathers": (True,),
}


def check_sharding(config: Config) -> None:
    """Refuse what makes FSDP divide less than a spec means."""
    for setting, usual in _FULL_SHARD.items():
        for name in (f"fsdp_config.{setting}", f"fsdp_config.fsdp_{setting}"):
            if config.get(name, usual[0]) not in usual:
                config.refuse(name, "FSDP divides less than all")
