"""The catalogue of GPUs: what a job can be asked to fit on.

Memory is the total that a driver, or PyTorch in public reports, shows; the lowest where they
differ, since a job must fit in that. Multiprocessors and compute capability decide which kernels
and workspaces PyTorch chooses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memgate.errors import UnknownGpuError
from memgate.mistakes import Mistake, RuleError, show_value, suggest
from memgate.near_names import find_near, loosen
from memgate.units import GIB, MIB, format_size
from memgate.validation import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A kind of GPU."""

    name: str
    #: as NVIDIA's tools call it
    product: str
    memory_bytes: int
    #: major, minor
    compute_capability: tuple[int, int]
    multiprocessors: int
    #: what libraries take besides the allocator once they are used: handles, kernels. Measured on
    #: three GPUs, as the median of measured minus predicted over language models; on others it is
    #: taken to be that of the RTX 3060
    library_bytes: int

    @property
    def generation(self) -> str:
        """GPUs of one generation run the same kernels: Volta and Turing differ, 8.x do not."""
        major, minor = self.compute_capability
        return f"{major}.{minor}" if major < _FIRST_UNIFORM else str(major)

    def has_kernels(self, architectures: Collection[str]) -> bool:
        """Say whether a PyTorch that was built for these (``sm_80``, ``compute_90``) runs on it.

        Machine code runs on its own major capability from its minor one on, code that the driver
        translates on all later ones; a name that ends in a letter is for just one. If it is not
        known what it was built for, it is assumed to run.
        """
        found = filter(None, map(_ARCHITECTURE.fullmatch, architectures))
        return not architectures or any(self._runs(*one.groups()) for one in found)

    def _runs(self, kind: str, major: str, minor: str, letter: str) -> bool:
        built_for = (int(major), int(minor))
        if letter:
            return self.compute_capability == built_for
        is_later = self.compute_capability >= built_for
        return is_later and (kind == "compute" or self.compute_capability[0] == built_for[0])


#: as PyTorch names what it was built for
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")

#: from Ampere on, PyTorch chooses kernels by the major compute capability
_FIRST_UNIFORM = 8


def _gpu(
    name: str,
    product: str,
    memory_bytes: float,
    capability: str,
    multiprocessors: int,
    library_mib: int = 34,
) -> GpuSpec:
    major, minor = capability.split(".")
    return GpuSpec(
        name=name,
        product=product,
        memory_bytes=int(memory_bytes),
        compute_capability=(int(major), int(minor)),
        multiprocessors=multiprocessors,
        library_bytes=library_mib * MIB,
    )


CATALOGUE: dict[str, GpuSpec] = {
    gpu.name: gpu
    for gpu in (
        _gpu("p100-16", "Tesla P100-PCIE-16GB", 16280 * MIB, "6.0", 56),
        _gpu("v100-16", "Tesla V100-SXM2-16GB", 16130 * MIB, "7.0", 80),
        _gpu("v100-32", "Tesla V100-SXM2-32GB", 31.74 * GIB, "7.0", 80),
        _gpu("t4", "Tesla T4", 14.56 * GIB, "7.5", 40),
        _gpu("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti", 11019 * MIB, "7.5", 68),
        _gpu("rtx-3060", "NVIDIA GeForce RTX 3060", 11931 * MIB, "8.6", 28),
        _gpu("rtx-3080", "NVIDIA GeForce RTX 3080", 9.78 * GIB, "8.6", 68),
        _gpu("rtx-3090", "NVIDIA GeForce RTX 3090", 23.68 * GIB, "8.6", 82),
        _gpu("rtx-a4000", "NVIDIA RTX A4000", 15.61 * GIB, "8.6", 48),
        _gpu("rtx-4060", "NVIDIA GeForce RTX 4060", 8318222336, "8.9", 24, 30),
        _gpu("rtx-4090", "NVIDIA GeForce RTX 4090", 23.64 * GIB, "8.9", 128),
        _gpu("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 44.43 * GIB, "8.9", 142),
        _gpu("a10g", "NVIDIA A10G", 22587 * MIB, "8.6", 80),
        _gpu("a10", "NVIDIA A10", 22587 * MIB, "8.6", 72),
        _gpu("a30", "NVIDIA A30", 23.53 * GIB, "8.0", 56),
        _gpu("l4", "NVIDIA L4", 23583784960, "8.9", 58),
        _gpu("l40", "NVIDIA L40", 44.40 * GIB, "8.9", 142),
        _gpu("l40s", "NVIDIA L40S", 45589 * MIB, "8.9", 142),
        _gpu("a100-40", "NVIDIA A100-SXM4-40GB", 42298834944, "8.0", 108, 94),
        _gpu("a100-80", "NVIDIA A100-SXM4-80GB", 79.15 * GIB, "8.0", 108),
        _gpu("h100-80", "NVIDIA H100 80GB HBM3", 81082 * MIB, "9.0", 132),
        _gpu("h100-94", "NVIDIA H100 NVL", 93.00 * GIB, "9.0", 132),
        _gpu("h200", "NVIDIA H200", 143156 * MIB, "9.0", 132),
        _gpu("b200", "NVIDIA B200", 178.35 * GIB, "10.0", 148),
        # Parts of a GPU (MIG), by what a job in one of them sees.
        _gpu("a100-80-1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728 * MIB, "8.0", 14),
        _gpu("a100-80-2g.20gb", "NVIDIA A100-SXM4-80GB MIG 2g.20gb", 19968 * MIB, "8.0", 28),
        _gpu("h100-80-1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75 * GIB, "9.0", 16),
        _gpu("h100-80-1g.20gb", "NVIDIA H100 80GB HBM3 MIG 1g.20gb", 19.62 * GIB, "9.0", 26),
        _gpu("h100-80-2g.20gb", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 19.62 * GIB, "9.0", 32),
        _gpu("h100-80-3g.40gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 39.50 * GIB, "9.0", 60),
        _gpu("h100-80-4g.40gb", "NVIDIA H100 80GB HBM3 MIG 4g.40gb", 39.50 * GIB, "9.0", 64),
        _gpu("h100-80-7g.80gb", "NVIDIA H100 80GB HBM3 MIG 7g.80gb", 79.25 * GIB, "9.0", 132),
    )
}


def find_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalogue, by its name or an unambiguous variant of it.

    Raises:
        UnknownGpuError: with the names that it may mean, or similar ones.
    """
    found = _understand(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownGpuError.from_mistakes(_ambiguous(name, found))
    names = {spelling: gpu.name for gpu in CATALOGUE.values() for spelling in _spellings(gpu)}
    near = tuple(dict.fromkeys(names[one] for one in find_near(name, names)))
    step = (
        'describe it, as {"memory_bytes": 12884901888, "compute_capability": "8.6"};'
        " memgate gpus lists the names"
    )
    mistake = Mistake(
        field="gpu",
        value=show_value(name),
        rule="it is not in the catalogue",
        next_step=" otherwise ".join(filter(None, (suggest(near), step))),
        near=near,
    )
    raise UnknownGpuError.from_mistakes(mistake)


def _ambiguous(name: str, found: Sequence[GpuSpec]) -> Mistake:
    sizes = ", ".join(f"{gpu.name} ({format_size(gpu.memory_bytes)})" for gpu in found)
    return Mistake(
        field="gpu",
        value=show_value(name),
        rule="more than one GPU of the catalogue is called that",
        next_step=f"write one of: {sizes}",
        near=tuple(gpu.name for gpu in found),
    )


def _understand(text: str) -> tuple[GpuSpec, ...]:
    """Return the GPUs that a name means: one, several if it leaves out the memory, or none.

    ``RTX 3060`` and ``rtx3060`` are ``rtx-3060``; ``NVIDIA A100-SXM4-80GB`` and ``a100 80gb`` are
    ``a100-80``; ``a100`` is two cards. Only the memory may be left out: an RTX
    2080 is not the 2080 Ti, nor an H20 the H200.
    """
    if text in CATALOGUE:
        return (CATALOGUE[text],)
    same = [gpu for gpu in CATALOGUE.values() if loosen(gpu.name) == loosen(text)]
    if same:
        return tuple(same)
    if _VENDORS.match(text) and (gpu := find_product(text)):
        return (gpu,)
    wanted = _essence(text)
    full = [gpu for gpu in CATALOGUE.values() if wanted and _essence(gpu.product) == wanted]
    short = [gpu for gpu in CATALOGUE.values() if wanted and wanted == _card(gpu)]
    return tuple(full or short)


#: how NVIDIA's own product names begin
_VENDORS = re.compile("nvidia|tesla|geforce|quadro", re.IGNORECASE)


def _card(gpu: GpuSpec) -> frozenset[str]:
    """Return the words of a catalogue name without the memory: a100 for a100-80."""
    words = gpu.name.split("-")
    return frozenset(words[:-1] if words[-1].isdecimal() and len(words[-1]) < 4 else words)


def _spellings(gpu: GpuSpec) -> tuple[str, ...]:
    """Return what a person may have tried to write."""
    return gpu.name, gpu.name.removeprefix("rtx-"), gpu.product, gpu.product.removeprefix("NVIDIA ")


#: what distinguishes cards of one name, besides their memory: it changes none of our figures
_VARIANTS = frozenset({"nvidia", "tesla", "geforce", "pcie", "sxm2", "sxm3", "sxm4", "sxm5", "sxm"})
_VARIANTS |= frozenset({"hbm2", "hbm2e", "hbm3", "hbm3e", "shared"})
#: from clouds' own names: a faster network, and the memory of the only card that has so much
_VARIANTS |= frozenset({"mega", "141gb"})


def find_product(label: str) -> GpuSpec | None:
    """Return the GPU that NVIDIA's tools call this, None if the catalogue does not have it.

    Labels of Kubernetes nodes write ``-`` for spaces. Variants of a card (PCIe, SXM) count as one,
    and so does a card that jobs share by taking turns: each sees all of its memory. The amount may
    be left out if only one card has the name.
    """
    found = find_products(label)
    return found[0] if len(found) == 1 else None


def find_products(label: str) -> tuple[GpuSpec, ...]:
    """Return the GPUs that a label may mean: several if it leaves out which memory they have."""
    wanted = _essence(label)
    known = {gpu: _essence(gpu.product) for gpu in CATALOGUE.values()}
    same = tuple(gpu for gpu, words in known.items() if words == wanted)
    like = tuple(gpu for gpu, words in known.items() if _without_memory(words) == wanted)
    return same[:1] or like


def _essence(product: str) -> frozenset[str]:
    words = re.split(r"[^a-z0-9.]+", product.lower())
    return frozenset(words) - _VARIANTS - {""}


def _without_memory(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if re.fullmatch(r"\d+gb", word) is None)


#: more than any GPU has: 1 PiB
_MAX_BYTES = 1 << 50

_CAPABILITY = r"^\d{1,2}\.\d$"


class GpuRequest(BaseModel):
    """A GPU as a caller asks for it: from the catalogue, or described."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    """Its name in the catalogue, or an unambiguous variant of it."""
    memory_bytes: Annotated[int, Field(strict=True, ge=1, le=_MAX_BYTES)] | None = None
    compute_capability: Annotated[str, Field(json_schema_extra={"pattern": _CAPABILITY})] | None = (
        None
    )
    already_used_bytes: Annotated[int, Field(strict=True, ge=0, le=_MAX_BYTES)] = 0
    """By other processes on the same GPU."""
    count: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 1
    """How many the job gets; the answer is for each of them."""

    @field_validator("compute_capability")
    @classmethod
    def _is_a_version(cls, value: str | None) -> str | None:
        if value is not None and re.fullmatch(_CAPABILITY, value, re.ASCII) is None:
            raise RuleError(
                "a compute capability is a major and a minor number, such as '8.0'",
                "nvidia-smi --query-gpu=compute_cap prints a GPU's",
            )
        return value

    @field_validator("name")
    @classmethod
    def _is_the_catalogues(cls, name: str | None) -> str | None:
        """Give a GPU one name, so that a question has one id; ``find_gpu`` refuses unknown ones."""
        found = _understand(name) if name else ()
        return found[0].name if len(found) == 1 else name

    def model_post_init(self, _: object) -> None:
        """Check that it is either named or described."""
        described = (self.memory_bytes is None, self.compute_capability is None)
        if any(described) != all(described) or (self.name is None) == all(described):
            raise RuleError("give either 'name', or 'memory_bytes' and 'compute_capability'")

    def target(self) -> GpuTarget:
        """Return the GPU that is asked for, and what is left of it.

        Raises:
            UnknownGpuError: if it is named and not in the catalogue.
        """
        gpu = find_gpu(self.name) if self.name is not None else _described(self)
        return GpuTarget(gpu=gpu, already_used_bytes=self.already_used_bytes, count=self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A GPU, and what is left of it."""

    gpu: GpuSpec
    already_used_bytes: int = 0
    count: int = 1


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
    major, minor = map(int, asked.compute_capability.split("."))

    def unlikeness(gpu: GpuSpec) -> tuple[int, int]:
        other_major, other_minor = gpu.compute_capability
        capability = abs(10 * (major - other_major) + minor - other_minor)
        return capability, abs(gpu.memory_bytes - (asked.memory_bytes or 0))

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
