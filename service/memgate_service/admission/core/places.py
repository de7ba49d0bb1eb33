"""A place where a job may run: a GPU, or the part of one that was declared for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memgate.decision import Decision
from memgate.gpus import GpuSpec
from memgate.placement import Room
from memgate.report import Estimate
from memgate.units import MIB
from memgate.verdict import decide


class Unit(StrEnum):
    """The unit in which memory is declared."""

    MIB = "MiB"
    PERCENT = "percent of a GPU"
    FRACTION = "fraction of a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """How much of its GPU's memory a job may take, however much the GPU has."""

    size_bytes: int
    name: str
    """Where it is declared: ``nvidia.com/gpumem``."""
    unit: Unit = Unit.MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A GPU, or a part of one."""

    gpu: GpuSpec
    declared: Declared | None = None
    is_assumed: bool = False
    """Nothing says that it will be this GPU."""

    @property
    def capacity_bytes(self) -> int:
        """What a job can have there."""
        if self.declared is None:
            return self.gpu.memory_bytes
        return min(self.declared.size_bytes, self.gpu.memory_bytes)

    @property
    def is_part(self) -> bool:
        """A job gets less than the GPU has, because less was declared."""
        return self.capacity_bytes < self.gpu.memory_bytes

    def how_to_declare(self, size_bytes: int) -> str:
        """Write a size as it is declared there: 8772 MiB, 60 %, 0.6; empty if the GPU has less."""
        if self.declared is None or not self.is_part or size_bytes > self.gpu.memory_bytes:
            return ""
        hundredths = -(-100 * size_bytes // self.gpu.memory_bytes)
        if self.declared.unit is Unit.PERCENT:
            return f"{hundredths} %"
        if self.declared.unit is Unit.FRACTION:
            return f"{hundredths / 100:g}"
        return f"{-(-size_bytes // MIB)} MiB"

    def compare(self, estimate: Estimate) -> Room:
        """Decide whether a job fits here, by its estimate for another GPU of this generation."""
        nccl = estimate.communication_range
        segments = estimate.required_bytes - estimate.context_bytes - nccl.expected_bytes
        missing = self.gpu.memory_bytes - self.capacity_bytes
        verdict = decide(
            *(segments, self.gpu),
            already_used_bytes=missing,
            communication=nccl,
            bounds=estimate.bounds_on(self.gpu),
        )
        decision = verdict.decision
        if _is_doubted(estimate) or (self.gpu.is_part and estimate.communication is not None):
            decision = min(decision, Decision.UNCERTAIN)
        declared = self.declared if self.is_part else None
        return Room(
            gpu=self.gpu.name,
            decision=decision,
            sizes=verdict.sizes,
            declared_by=declared.name if declared else "",
            is_share=declared is not None and declared.unit is not Unit.MIB,
        )


def _is_doubted(estimate: Estimate) -> bool:
    """Its sizes alone would have admitted the job: something about the run is in doubt."""
    is_enough = estimate.needs_bytes <= estimate.available_bytes
    return estimate.decision is Decision.UNCERTAIN and is_enough
