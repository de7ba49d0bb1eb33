"""The operator's own entries: a document, as read from a file -> GPUs.

gpus:
  - name: a100-64            # all that cannot be taken from another
    product: NVIDIA A100-SXM-64GB
    memory_bytes: 68098719744
    compute_capability: "8.0"
    multiprocessors: 124
  - name: l40s-lab           # like another, but for what is said
    like: l40s
    memory_bytes: 47664070656
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memgate.context import ContextRange
from memgate.errors import InputError
from memgate.gpus.catalogue import BUILT_IN
from memgate.gpus.foreign import find_foreign
from memgate.gpus.instances import find_machine
from memgate.gpus.requests import MAX_BYTES, check_capability
from memgate.gpus.spec import USUAL_LIBRARY_MIB, GpuSpec
from memgate.mistakes import Mistake, show_value, unknown_name
from memgate.units import MIB
from memgate.validation import validate

#: more than any GPU has
_MAX_MULTIPROCESSORS = 10_000

#: without ``like``
_NEEDED = ("memory_bytes", "compute_capability", "multiprocessors")


class OwnContext(BaseModel):
    """What a process holds there besides the allocator's segments, as it was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low_bytes: Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)]
    usual_bytes: Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)]
    high_bytes: Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)]

    def range(self) -> ContextRange:
        """Return it as bounds have it.

        Raises:
            InputError: if the three are not in order.
        """
        if not self.low_bytes <= self.usual_bytes <= self.high_bytes:
            raise _wrong(
                *("context.usual_bytes", self.usual_bytes, "low <= usual <= high must hold"),
                "put the three in order",
            )
        sizes = (self.low_bytes, self.usual_bytes, self.high_bytes)
        return ContextRange(*sizes, "the operator's own entry (MEMGATE_GPUS)")


class OwnGpu(BaseModel):
    """A GPU that the operator describes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(max_length=60, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
    """In lower case: letters, digits, dots and dashes."""
    product: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """As NVIDIA's tools call it, and node labels; the name unless given."""
    memory_bytes: Annotated[int, Field(strict=True, ge=1, le=MAX_BYTES)] | None = None
    """The total that PyTorch shows there."""
    compute_capability: str | None = None
    multiprocessors: Annotated[int, Field(strict=True, ge=1, le=_MAX_MULTIPROCESSORS)] | None = None
    library_bytes: Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)] | None = None
    """What libraries take besides the allocator."""
    context: OwnContext | None = None
    """The CUDA context of its driver and libraries."""
    like: str | None = None
    """A GPU of the catalogue that it is like, but for what is given here."""
    replaces: bool = False
    """It has the name of a GPU of the catalogue, and takes its place."""

    @field_validator("compute_capability")
    @classmethod
    def _is_a_version(cls, value: str | None) -> str | None:
        return None if value is None else check_capability(value)

    def spec(self) -> GpuSpec:
        """Fill in what it takes from another GPU.

        Raises:
            InputError: if it is like none of the catalogue, or lacks what it must say.
        """
        like = self._like()
        lacking = [name for name in _NEEDED if getattr(self, name) is None]
        if like is None and lacking:
            raise _wrong(lacking[0], None, "without 'like' it must be given", "add it, or 'like'")
        capability = self.compute_capability or (like.capability if like else "")
        major, minor = map(int, capability.split("."))
        usual = like.library_bytes if like else USUAL_LIBRARY_MIB * MIB
        return GpuSpec(
            name=self.name,
            product=self.product or self.name,
            memory_bytes=self.memory_bytes or (like.memory_bytes if like else 0),
            compute_capability=(major, minor),
            multiprocessors=self.multiprocessors or (like.multiprocessors if like else 0),
            library_bytes=usual if self.library_bytes is None else self.library_bytes,
            context=self.context.range() if self.context else None,
        )

    def _like(self) -> GpuSpec | None:
        if self.like is None or self.like in BUILT_IN:
            return BUILT_IN.get(self.like or "")
        raise InputError.from_mistakes(
            unknown_name("like", self.like, BUILT_IN, rule="it is not in memgate's own catalogue")
        )


class OwnGpus(BaseModel):
    """The file that ``MEMGATE_GPUS`` names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: list[dict[str, Any]]


def read_own_gpus(document: object) -> tuple[GpuSpec, ...]:
    """Return the GPUs that an operator's file describes.

    Raises:
        InputError: naming the entry, the field, its value, the rule and the next step.
    """
    found: dict[str, GpuSpec] = {}
    for number, entry in enumerate(validate(OwnGpus, document, what="file").gpus):
        place = f"gpus.{number}"
        own = validate(OwnGpu, entry, what=place)
        try:
            gpu = own.spec()
            _check_name(own, gpu, found)
        except InputError as error:
            raise error.about(f"{place} ({own.name})") from None
        found[gpu.name] = gpu
    return tuple(found.values())


def _check_name(own: OwnGpu, gpu: GpuSpec, found: dict[str, GpuSpec]) -> None:
    """Refuse names that already mean something else."""
    if own.name in found:
        raise _wrong("name", own.name, "two entries have this name", "rename one of them")
    known = BUILT_IN.get(own.name)
    if known is not None and known != gpu and not own.replaces:
        raise _wrong(
            *("name", own.name, "memgate's own catalogue has it, with other values"),
            "take another name, or add 'replaces: true' if it is meant to take its place",
        )
    if known is None and (find_machine(own.name) or find_foreign(own.name)):
        raise _wrong(
            *("name", own.name, "it means a cloud's machine type or another vendor's GPU"),
            "take another name",
        )


def _wrong(field: str, value: object, rule: str, next_step: str) -> InputError:
    shown = "" if value is None else show_value(value)
    return InputError.from_mistakes(
        Mistake(field=field, value=shown, rule=rule, next_step=next_step)
    )
