"""How a model computes attention, and which jobs can have that."""

from __future__ import annotations

from enum import StrEnum

from memgate.jobspec.model import ModelSource, ModelSpec
from memgate.jobspec.training import Precision
from memgate.mistakes import RuleError


class Attention(StrEnum):
    """How a model of transformers computes attention."""

    AUTO = "auto"
    SDPA = "sdpa"
    FLASH = "flash"
    EAGER = "eager"


#: the key of a configuration that says the same, and what it says for flash-attn
_KEY = "attn_implementation"
_FLASH = "flash_attention_2"

_OF_32_BITS = frozenset({Precision.FP32, Precision.TF32})


def asks_for_flash(attention: Attention, model: ModelSpec) -> bool:
    """Say whether attention is that of the flash-attn package."""
    return attention is Attention.FLASH or model.config.get(_KEY) == _FLASH


def check_attention(given: Attention, model: ModelSpec | None, precision: Precision | None) -> None:
    """Refuse attention that a job cannot have.

    Args:
        given: what the spec says.
        model: None if there is something wrong with it.
        precision: likewise.

    Raises:
        RuleError: with the next step.
    """
    if model is None:
        return
    if given is not Attention.AUTO and model.source is not ModelSource.TRANSFORMERS:
        rule = f"it is a choice of transformers' models, and {model.source}'s have none"
        raise RuleError(rule, "leave it out")
    if given is not Attention.AUTO and _KEY in model.config:
        rule = f"model.config has '{_KEY}', which says the same"
        raise RuleError(rule, "leave out one of the two")
    if asks_for_flash(given, model) and precision in _OF_32_BITS:
        rule = f"flash-attn computes in 16 bits, and precision is {precision.value}"
        raise RuleError(rule, "give a precision of 16 bits (amp-bf16, bf16), or use 'sdpa'")
