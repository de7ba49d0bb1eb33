"""What a conversion is given beside the config, and what it gives: a spec, and every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memgate.convert.fields import FieldUse


class ConfigKind(StrEnum):
    """Whose config it is."""

    HF = "hf"
    """``TrainingArguments`` of transformers, with the model beside them."""
    TRL = "trl"
    """The same with the fields of TRL's ``SFTConfig``."""
    AXOLOTL = "axolotl"
    LLAMA_FACTORY = "llama-factory"
    TORCHTUNE = "torchtune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a person knows and a config does not say."""

    model: str | None = None
    sequence_length: int | None = None
    world_size: int | None = None
    #: the content of a DeepSpeed file
    deepspeed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What a config leaves open, and how the spec has it."""

    #: of the spec
    field: str
    why: str
    #: another choice would take other memory
    can_matter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A config as a job spec."""

    kind: ConfigKind
    #: as ``parse_job_spec`` takes it, without what is default
    spec: Mapping[str, Any]
    fields: tuple[FieldUse, ...]
    assumptions: tuple[Assumption, ...] = ()

    @property
    def unused(self) -> tuple[FieldUse, ...]:
        """The fields that can matter and that the spec does not say."""
        return tuple(field for field in self.fields if field.use.can_matter)

    @property
    def is_whole(self) -> bool:
        """All that can matter is in the spec."""
        return not self.unused and not any(one.can_matter for one in self.assumptions)
