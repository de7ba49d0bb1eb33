"""The keys of a document -> whose config it is, or what it is instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memgate.convert.conversion import ConfigKind
from memgate.errors import InputError
from memgate.mistakes import suggest
from memgate.near_names import find_near

#: keys that only one of them has; the last has what others have, too
_OWN_KEYS = {
    ConfigKind.AXOLOTL: ("base_model", "micro_batch_size", "sequence_len"),
    ConfigKind.LLAMA_FACTORY: ("finetuning_type", "cutoff_len", "stage"),
    ConfigKind.TRL: (
        *("packing", "max_length", "dataset_text_field", "assistant_only_loss", "padding_free"),
        *("completion_only_loss", "use_peft", "packing_strategy", "eval_packing"),
        *("max_prompt_length", "max_completion_length", "num_generations", "reward_funcs"),
    ),
    ConfigKind.HF: (
        "per_device_train_batch_size",
        "num_train_epochs",
        "output_dir",
        "learning_rate",
    ),
}

#: what else people have at hand, by a key of it
_OTHERS = {
    "zero_optimization": "a DeepSpeed file: give it beside the trainer's config, with --deepspeed",
    "train_micro_batch_size_per_gpu": "a DeepSpeed file: give it beside the trainer's config, with"
    " --deepspeed",
    "distributed_type": "a config of accelerate, which says how a job is started: convert the"
    " config of the training, with --world-size",
    "architectures": "the config.json of a model: write it into a job spec, as"
    ' {"model": {"source": "transformers", "config": {...}}}',
    "train_dataset": "a config of LLaMA-Factory's version 1, which has a training loop of its own:"
    " ask about the command itself, with memgate run",
    "peft_type": "the config of an adapter: convert the config of the training",
}

_COMPONENT = "_component_"


def find_kind(document: Mapping[str, Any]) -> ConfigKind:
    """Return whose config it is.

    Raises:
        InputError: if it is none, saying what it is instead, or which key was meant.
    """
    if _is_torchtune(document):
        return ConfigKind.TORCHTUNE
    for key, what in _OTHERS.items():
        if key in document:
            raise InputError(f"{key}: this is {what}")
    if isinstance(document.get("model"), dict) and "source" in document["model"]:
        raise InputError("this is a job spec already: memgate estimate SPEC --gpu GPU")
    for kind, keys in _OWN_KEYS.items():
        if any(key in document for key in keys):
            return kind
    raise InputError(_say_near(document))


def _is_torchtune(document: Mapping[str, Any]) -> bool:
    return any(isinstance(part, dict) and _COMPONENT in part for part in document.values())


def _say_near(document: Mapping[str, Any]) -> str:
    known = {key: kind for kind, keys in _OWN_KEYS.items() for key in keys}
    for key in document:
        if near := find_near(key, known, limit=1):
            return f"{key}: no tool has this; {suggest(near)} That is a key of {known[near[0]]}"
    kinds = ", ".join(ConfigKind)
    return f"no tool's config has these keys; say whose it is with --kind: {kinds}"
