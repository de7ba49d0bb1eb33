"""Small configs of each tool, and how tests ask what becomes of them."""

from __future__ import annotations

from typing import Any

from memgate.convert import Beside, Conversion, Usage, convert
from memgate.jobspec import parse_job_spec

LLAMA = "meta-llama/Llama-3.2-1B"

HF = {
    "model_name_or_path": "gpt2",
    "max_seq_length": 512,
    "per_device_train_batch_size": 4,
    "output_dir": "out",
    "optim": "adamw_torch",
    "torch_dtype": "float32",
}
TRL = {"model_name_or_path": LLAMA, "max_length": 2048, "output_dir": "out"}
AXOLOTL = {"base_model": LLAMA, "sequence_len": 2048, "micro_batch_size": 2}
FACTORY = {
    "stage": "sft",
    "model_name_or_path": LLAMA,
    "finetuning_type": "lora",
    "cutoff_len": 1024,
    "per_device_train_batch_size": 1,
    "optim": "adamw_torch",
}
TORCHTUNE = {
    "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 1024},
    "batch_size": 2,
    "dtype": "bf16",
}


def convert_one(document: dict[str, Any], **beside: Any) -> Conversion:
    """Convert a config, with what is given beside it."""
    return convert(document, beside=Beside(**beside))


def spec_of(document: dict[str, Any], **beside: Any) -> dict[str, Any]:
    """Return the spec as it is after a check, so that every field is one of ours."""
    spec = convert_one(document, **beside).spec
    parse_job_spec(dict(spec))
    return dict(spec)


def unused(conversion: Conversion) -> set[str]:
    """Return the names of fields that were not used."""
    return {field.name for field in conversion.unused}


def why(conversion: Conversion, name: str) -> str:
    """Return why a field is not supported."""
    (field,) = [one for one in conversion.fields if one.name == name]
    assert field.use is Usage.NOT_SUPPORTED
    return field.note
