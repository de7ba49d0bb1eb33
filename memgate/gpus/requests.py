"""A GPU as a caller asks for it: by name, or described; and how much of it is left."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memgate.gpus.catalogue import CATALOGUE
from memgate.gpus.names import find_gpu, understand
from memgate.gpus.spec import GpuSpec
from memgate.mistakes import RuleError
from memgate.units import format_size
from memgate.validation import validate

#: more than any GPU has: 1 PiB
MAX_BYTES = 1 << 50

#: GPUs count as of one size if they differ by less than one part in this many
_LIKELY = 10

_CAPABILITY = r"^\d{1,2}\.\d$"


def check_capability(value: str) -> str:
    """Return a compute capability as it is given.

    Raises:
        RuleError: if it is not one.
    """
    if re.fullmatch(_CAPABILITY, value, re.ASCII) is None:
        raise RuleError(
            "a compute capability is a major and a minor number, such as '8.0'",
            "nvidia-smi --query-gpu=compute_cap prints a GPU's",
        )
    return value


class GpuRequest(BaseModel):
    """A GPU as a caller asks for it: from the catalogue, or described."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str | None = None
    """Its name in the catalogue, an unambiguous variant of it, or a cloud's machine type."""
    memory_bytes: Annotated[int, Field(strict=True, ge=1, le=MAX_BYTES)] | None = None
    compute_capability: Annotated[str, Field(json_schema_extra={"pattern": _CAPABILITY})] | None = (
        None
    )
    already_used_bytes: Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)] = 0
    """By other processes on the same GPU."""
    count: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 1
    """How many the job gets, in all machines together; the answer is for each of them."""
    per_node: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] | None = None
    """How many of them are in one machine; 8 at most unless given."""

    @field_validator("compute_capability")
    @classmethod
    def _is_a_version(cls, value: str | None) -> str | None:
        return None if value is None else check_capability(value)

    @field_validator("name")
    @classmethod
    def _is_the_catalogues(cls, name: str | None) -> str | None:
        """Give a GPU one name, so that a question has one id; ``find_gpu`` refuses unknown ones."""
        found = understand(name) if name else ()
        return found[0].name if len(found) == 1 else name

    def model_post_init(self, _: object) -> None:
        """Check that it is either named or described, and that machines are full."""
        if self.per_node is not None and self.count % self.per_node:
            raise RuleError(f"per_node: {self.count} GPUs do not fill machines of {self.per_node}")
        if self.count == 1:  # says nothing, and a question has one id
            self.__dict__["per_node"] = None
        described = (self.memory_bytes is None, self.compute_capability is None)
        if any(described) != all(described) or (self.name is None) == all(described):
            raise RuleError("give either 'name', or 'memory_bytes' and 'compute_capability'")

    def target(self) -> GpuTarget:
        """Return the GPU that is asked for, and what is left of it.

        Raises:
            UnknownGpuError: if it is named and not in the catalogue.
        """
        gpu = find_gpu(self.name) if self.name is not None else _described(self)
        return GpuTarget(
            gpu=gpu,
            already_used_bytes=self.already_used_bytes,
            count=self.count,
            per_node=self.per_node,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A GPU, and what is left of it."""

    gpu: GpuSpec
    already_used_bytes: int = 0
    #: that the job gets, and how many of them are in one machine, if that is known
    count: int = 1
    per_node: int | None = None


def parse_gpu(document: object) -> GpuTarget:
    """Return the GPU that a caller asks for, by name or as an object.

    Raises:
        InputError: naming the field and the rule, or the known names.
    """
    if isinstance(document, str):
        return GpuTarget(gpu=find_gpu(document))
    return validate(GpuRequest, document, what="gpu").target()


def _described(asked: GpuRequest) -> GpuSpec:
    """Make a GPU that the catalogue lacks; what is not given is taken from the most similar one."""
    assert asked.memory_bytes is not None
    assert asked.compute_capability is not None
    memory_bytes = asked.memory_bytes
    major, minor = map(int, asked.compute_capability.split("."))

    def unlikeness(gpu: GpuSpec) -> tuple[int, bool, int]:
        other_major, other_minor = gpu.compute_capability
        capability = abs(10 * (major - other_major) + minor - other_minor)
        difference = abs(gpu.memory_bytes - memory_bytes)
        # a whole GPU of about that size, rather than a part of another that is a little nearer
        is_likely = not gpu.is_part and difference * _LIKELY <= memory_bytes
        return capability, not is_likely, difference

    like = min(CATALOGUE.values(), key=unlikeness)
    label = f"{format_size(asked.memory_bytes)}, {asked.compute_capability}"
    return GpuSpec(
        name=f"GPU ({label})",
        product=f"GPU ({label})",
        memory_bytes=asked.memory_bytes,
        compute_capability=(major, minor),
        multiprocessors=like.multiprocessors,
        library_bytes=like.library_bytes,
    )
