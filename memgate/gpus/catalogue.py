"""The catalogue: the rows of ``table``, and what the operator adds.

It is one dictionary for a whole process: a program adds the operator's own entries when it starts
(``use_own_gpus``). Reading their file is not done here: see ``memgate_worker.own_gpus``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from memgate.gpus.spec import USUAL_LIBRARY_MIB, GpuSpec, MemoryReports
from memgate.gpus.table import ROWS, GpuRow
from memgate.units import MIB

_DIGEST_LENGTH = 16


def _spec(row: GpuRow) -> GpuSpec:
    major, minor = row.capability.split(".")
    library_mib = USUAL_LIBRARY_MIB if row.library_mib is None else row.library_mib
    return GpuSpec(
        name=row.name,
        product=row.product,
        memory_bytes=int(row.memory_bytes),
        compute_capability=(int(major), int(minor)),
        multiprocessors=row.multiprocessors,
        library_bytes=library_mib * MIB,
    )


def _reports(row: GpuRow) -> MemoryReports:
    lowest = row.memory_bytes if row.lowest_bytes is None else row.lowest_bytes
    return MemoryReports(
        lowest_bytes=int(lowest), highest_bytes=int(row.highest_bytes), source=row.source
    )


#: what memgate brings
BUILT_IN: dict[str, GpuSpec] = {row.name: _spec(row) for row in ROWS}

_REPORTS: dict[str, MemoryReports] = {row.name: _reports(row) for row in ROWS}

#: all that a job can be asked to fit on: the operator's own first, so that they decide what a
#: product is
CATALOGUE: dict[str, GpuSpec] = dict(BUILT_IN)

_own: dict[str, GpuSpec] = {}


def use_own_gpus(own: Collection[GpuSpec]) -> None:
    """Make the operator's own GPUs, and no others, part of the catalogue."""
    wanted = {gpu.name: gpu for gpu in own}
    if wanted == _own:
        return
    _own.clear()
    _own.update(wanted)
    CATALOGUE.clear()
    CATALOGUE.update(wanted)
    CATALOGUE.update({name: gpu for name, gpu in BUILT_IN.items() if name not in wanted})


def digest_own_gpus() -> str:
    """Return a short name of the operator's own GPUs; empty if there are none.

    Answers name every GPU on which a job fits, so they depend on all of them.
    """
    if not _own:
        return ""
    said = repr(sorted(_own.items()))
    return hashlib.sha256(said.encode()).hexdigest()[:_DIGEST_LENGTH]


def find_reports(gpu: GpuSpec) -> MemoryReports:
    """Return what was reported of the memory of a GPU."""
    if gpu.name in _REPORTS and gpu.name not in _own:
        return _REPORTS[gpu.name]
    is_own = gpu.name in _own
    return MemoryReports(
        lowest_bytes=gpu.memory_bytes,
        highest_bytes=gpu.memory_bytes,
        source="the operator's own entry (MEMGATE_GPUS)" if is_own else "computed from the whole",
    )


def list_gpus() -> list[GpuSpec]:
    """Return the catalogue, the smallest memory first."""
    return sorted(CATALOGUE.values(), key=lambda gpu: (gpu.memory_bytes, gpu.name))
