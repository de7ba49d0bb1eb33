"""The names that trainers have for optimizers -> ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memgate.convert.conversion import Assumption

_FUSED = {"kwargs": {"fused": True}}

#: ``optim`` of transformers, which axolotl and LLaMA-Factory share
_NAMES: Mapping[str, dict[str, Any]] = {
    "adamw_torch": {"name": "AdamW"},
    "adamw_torch_fused": {"name": "AdamW"} | _FUSED,
    "adamw_hf": {"name": "AdamW"},
    "adamw_torch_8bit": {"name": "torchao.AdamW8bit"},
    "adamw_torch_4bit": {"name": "torchao.AdamW4bit"},
    "ao_adamw_8bit": {"name": "torchao.AdamW8bit"},
    "ao_adamw_4bit": {"name": "torchao.AdamW4bit"},
    "ao_adamw_fp8": {"name": "torchao.AdamWFp8"},
    "adamw_bnb_8bit": {"name": "bitsandbytes.AdamW8bit"},
    "adamw_8bit": {"name": "bitsandbytes.AdamW8bit"},
    "paged_adamw_32bit": {"name": "bitsandbytes.PagedAdamW32bit"},
    "paged_adamw_8bit": {"name": "bitsandbytes.PagedAdamW8bit"},
    "lion_32bit": {"name": "bitsandbytes.Lion32bit"},
    "lion_8bit": {"name": "bitsandbytes.Lion8bit"},
    "paged_lion_32bit": {"name": "bitsandbytes.PagedLion32bit"},
    "paged_lion_8bit": {"name": "bitsandbytes.PagedLion8bit"},
    "ademamix": {"name": "bitsandbytes.AdEMAMix32bit"},
    "ademamix_8bit": {"name": "bitsandbytes.AdEMAMix8bit"},
    "paged_ademamix_32bit": {"name": "bitsandbytes.PagedAdEMAMix32bit"},
    "paged_ademamix_8bit": {"name": "bitsandbytes.PagedAdEMAMix8bit"},
    "rmsprop_bnb": {"name": "bitsandbytes.RMSprop"},
    "rmsprop_bnb_8bit": {"name": "bitsandbytes.RMSprop8bit"},
    "rmsprop_bnb_32bit": {"name": "bitsandbytes.RMSprop32bit"},
    "sgd": {"name": "SGD"},
    "adagrad": {"name": "Adagrad"},
    "rmsprop": {"name": "RMSprop"},
    "adafactor": {"name": "Adafactor"},
    "muon": {"name": "Muon"},
}

#: an optimizer of ours that is another implementation of the same
_INSTEAD = {
    "adafactor": "torch's own Adafactor in place of the one of transformers",
    "muon": "torch's own Muon in place of the tool's",
}

NOT_OURS = "no optimizer of a spec is this one"


def find_optimizer(name: str) -> tuple[dict[str, Any] | None, tuple[Assumption, ...]]:
    """Return an optimizer of a spec, None if there is none, and what is assumed of it."""
    found = _NAMES.get(name)
    why = _INSTEAD.get(name)
    said = (Assumption(field="optimizer", why=why, can_matter=True),) if why else ()
    return (None if found is None else dict(found)), said
