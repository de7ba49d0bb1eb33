"""A kind of GPU: what an answer depends on, and where its figures come from."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from memgate.context import ContextRange

#: of libraries, on GPUs where it was not measured: that of the RTX 3060
USUAL_LIBRARY_MIB = 34


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
    #: of its driver, as the operator measured it; None: as documented
    context: ContextRange | None = None

    @property
    def capability(self) -> str:
        """The compute capability, as people write it."""
        return ".".join(map(str, self.compute_capability))

    @property
    def is_part(self) -> bool:
        """It is a part of a GPU (MIG)."""
        return " MIG " in self.product

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReports:
    """What was reported of a GPU's total memory, and by whom."""

    lowest_bytes: int
    highest_bytes: int
    source: str
