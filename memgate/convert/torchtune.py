"""A torchtune recipe's YAML -> a spec. Its recipes have their own loop and their own models.

Weights are in the type that ``dtype`` says, gradients are dropped after the step, and models are
torchtune's: ours is the same architecture out of transformers, which keeps other activations.
"""

from __future__ import annotations

import re
from typing import Any

from memgate.convert.conversion import Beside
from memgate.convert.draft import Draft
from memgate.convert.fields import Config, Knowledge, names
from memgate.convert.hf import clean
from memgate.convert.torchtune_models import NAMES
from memgate.errors import InputError, UnsupportedJobError
from memgate.mistakes import suggest
from memgate.near_names import find_near

KNOWN = Knowledge(
    harmless=names(
        """
        output_dir name seed shuffle epochs max_steps_per_epoch device checkpointer
        resume_from_checkpoint save_adapter_weights_only log_level metric_logger log_every_n_steps
        log_peak_memory_stats profiler lr_scheduler dataset tokenizer quantizer
        run_val_every_n_steps dataset_val collate_fn low_cpu_ram enable_async_checkpointing
        cudnn_deterministic_mode use_distributed_state_dict base_model_path optimizer.weight_decay
        optimizer.lr optimizer.betas optimizer.eps loss.ignore_index save_every_n_epochs
        model.max_seq_len log_adapter_weights merge_adapter_weights model.lora_alpha
"""
    ),
    matters={
        "optimizer": "an argument of the optimizer",
        "model": "an argument of the model",
        "loss": "the loss is computed in another way",
        "optimizer_in_bwd": "each gradient is dropped as soon as its weight is stepped",
        "custom_sharded_layers": "layers that are divided on their own",
        "memory_efficient_fsdp_wrap": "layers that are divided on their own",
        "tensor_parallel_dim": "weights are divided",
        "tensor_parallel_plan": "weights are divided",
        "context_parallel_dim": "sequences are divided",
        "data_parallel_shard_dim": "how the model is divided",
        "data_parallel_replicate_dim": "how the model is divided",
        "ac_mode": "some activations are kept",
        "ac_option": "some activations are kept",
        "fsdp": "how FSDP divides the model",
        "dataloader": "how batches are made",
        "enable_kv_cache": "keys and values are kept",
        "use_flex": "another attention",
    },
)

#: a recipe whose config has one of these does not fine-tune in the plain way
_OTHER_TASKS = {
    "teacher_model": "a distillation",
    "policy_model": "a reinforcement learning",
    "reward_and_value_model": "a reinforcement learning",
    "grpo_samples": "a reinforcement learning",
    "ref_checkpointer": "a preference learning with a second model",
    "tasks": "an evaluation",
    "prompt": "an inference",
    "orchestration": "a reinforcement learning",
}

_COMPONENT = "model._component_"
_BUILDER = re.compile(r"^torchtune\.models\.\w+\.(?P<method>q?lora_)?(?P<model>\w+)$")
_REFERENCE = re.compile(r"^\$\{([\w.]+)\}$")

#: torchtune's name for a layer -> that of transformers
_LAYERS = {"output_proj": "o_proj"}
_MLP = ["gate_proj", "up_proj", "down_proj"]

_OWN_MODELS = (
    "the model of transformers in place of torchtune's own, which keeps other activations; the loss"
    " has all logits at once, where torchtune's computes them in chunks"
)


def resolve_references(document: dict[str, Any]) -> dict[str, Any]:
    """Replace values such as ``${batch_size}`` by the value that they name, where it is plain."""
    return {
        key: resolve_references(value) if isinstance(value, dict) else _resolve(value, document)
        for key, value in document.items()
    }


def _resolve(value: Any, document: dict[str, Any]) -> Any:
    found = _REFERENCE.match(value) if isinstance(value, str) else None
    named = document.get(found[1]) if found else None
    return value if named is None or isinstance(named, dict) else named


def convert_torchtune(draft: Draft) -> None:
    """Fill a spec.

    Raises:
        UnsupportedJobError: if the recipe is not a plain fine-tuning.
    """
    config = draft.config
    _check_task(config)
    method = _put_model(draft)
    draft.put_length("tokenizer.max_seq_len", "dataset.max_seq_len")
    draft.put_batch("batch_size", default=1, accumulation="gradient_accumulation_steps")
    _put_optimizer(draft)
    draft.put("zero_grad", "after_step")
    draft.put_clipping("clip_grad_norm", default=None)
    dtype = draft.find_dtype("dtype")
    draft.put("precision", None if dtype == "fp32" else dtype)
    draft.put("gradient_checkpointing", config.flag("enable_activation_checkpointing"))
    if config.flag("enable_activation_offloading"):
        draft.offload("activations")
    draft.put("packing", config.flag("dataset.packed"))
    draft.put_compile("compile")
    _put_loss(draft)
    _put_evaluation(draft)
    _put_adapter(draft, method)
    if (draft.beside.world_size or 1) > 1:
        more: dict[str, Any] = {}
        if config.flag("fsdp_cpu_offload"):
            more["cpu_offload"] = True
        if not config.flag("fsdp_reshard_after_forward", default=True):
            more["reshard_after_forward"] = False
        draft.put_workers("fsdp2", "torchtune", **more)
    draft.assume("model", _OWN_MODELS, can_matter=True)


def _check_task(config: Config) -> None:
    loss = str(config.get("loss._component_", ""))
    found = [what for name, what in _OTHER_TASKS.items()
             if any(one == name or one.startswith(f"{name}.") for one in config.names)]  # fmt: skip
    if ".rlhf." in loss or ".rl." in loss:
        found.append("a preference learning")
    if found:
        raise UnsupportedJobError(
            f"this recipe is {found[0]}: a job spec describes a plain fine-tuning; ask about the"
            " command itself: memgate run --gpu GPU -- tune run RECIPE --config CONFIG"
        )


def _put_model(draft: Draft) -> str:
    """Set the model by its builder; return how it is trained: "", ``lora_`` or ``qlora_``."""
    builder = str(draft.config.get(_COMPONENT, ""))
    found = _BUILDER.match(builder)
    name = found["model"] if found else builder
    if draft.beside.model is None and name not in NAMES:
        step = suggest(find_near(name, NAMES)) or "add --model NAME"
        raise draft.config.wrong(_COMPONENT, builder, "memgate does not know this model", step)
    draft.spec["model"] = {
        "source": "transformers",
        "name": draft.beside.model or NAMES[name],
    }
    return (found["method"] or "") if found else ""


def _put_optimizer(draft: Draft) -> None:
    config = draft.config
    given = str(config.get("optimizer._component_", "torch.optim.AdamW"))
    library, _, name = given.rpartition(".")
    top = library.partition(".")[0]
    made: dict[str, Any] = {"name": name if library == "torch.optim" else f"{top}.{name}"}
    if top not in ("torch", "bitsandbytes", "torchao"):
        config.refuse("optimizer._component_", "no optimizer of a spec is this one")
        made = {"name": given}
    named = ("fused", "foreach", "momentum", "amsgrad", "nesterov")
    kwargs = find_given(config, "optimizer", named)
    draft.put("optimizer", made | clean({"kwargs": kwargs}))


def find_given(config: Config, inside: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return those fields of a part that are given."""
    given = {name: config.get(f"{inside}.{name}") for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _put_loss(draft: Draft) -> None:
    """Chunks of a loss are named in the note on models; a loss of another kind is not."""
    loss = str(draft.config.get("loss._component_", ""))
    if loss and not loss.rpartition(".")[2].endswith(
        ("CrossEntropyLoss", "CEWithChunkedOutputLoss")
    ):
        draft.config.refuse("loss._component_", "another loss")


def _put_evaluation(draft: Draft) -> None:
    config = draft.config
    every = config.whole("run_val_every_n_steps")
    size = config.whole("batch_size_val")
    if every:
        draft.put("eval", clean({"batch_size": size}))


def _put_adapter(draft: Draft, method: str) -> None:
    config = draft.config
    layers = config.get("model.lora_attn_modules", [])
    if not isinstance(layers, list):
        raise config.wrong("model.lora_attn_modules", layers, "it must be a list of layers")
    targets = [_LAYERS.get(str(one), str(one)) for one in layers]
    targets += _MLP if config.flag("model.apply_lora_to_mlp") else []
    targets += ["lm_head"] if config.flag("model.apply_lora_to_output") else []
    made = {
        "method": "dora" if config.flag("model.use_dora") else None,
        "rank": config.whole("model.lora_rank", 8),
        "alpha": config.number("model.lora_alpha"),
        "dropout": config.number("model.lora_dropout"),
        "target_modules": targets,
    }
    quantized = config.flag("model.quantize_base", default=method == "qlora_")
    if not method:
        return
    if not targets:
        raise InputError("model.lora_attn_modules is empty: the adapter has no layers")
    if "Phi-3" in draft.spec["model"]["name"] or "phi-4" in draft.spec["model"]["name"]:
        made["target_modules"] = "all-linear"
        draft.assume(
            "lora",
            "all layers: transformers' Phi has q, k and v in one layer, torchtune's in three",
            can_matter=True,
        )
    draft.put("lora", clean(made))
    if quantized:
        draft.put("quantization", {"method": "nf4", "double": True, "prepare": False})
        draft.assume("quantization", "bitsandbytes' NF4 in place of torchao's: equal blocks")


def read_torchtune(document: dict[str, Any], beside: Beside) -> Draft:
    """Return an empty draft of a recipe, with its references resolved."""
    return Draft(Config(resolve_references(document)), beside)
