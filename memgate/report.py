"""The answer of every door: an estimate."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from memgate.gpus import GpuSpec


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Reason(_Part):
    """Why a decision was taken."""

    code: str
    message: str


class Oom(_Part):
    """Where the job would die."""

    event: int
    message: str


class Estimate(_Part):
    """Will the job fit, how much does it need, and what for. Sizes are bytes."""

    decision: Literal["admit", "uncertain", "reject"]
    engine: str
    peak_bytes: int
    """What the driver would show for this process: segments and context."""
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    context_bytes: int
    required_bytes: int
    """The smallest device memory in which the job still runs."""
    upper_bound_bytes: int
    """``required_bytes`` with the measured margin and the largest context that is known of."""
    capacity_bytes: int
    headroom_bytes: int
    breakdown: dict[str, int]
    """At the peak; adds up to ``peak_bytes``."""
    reasons: list[Reason]
    oom: Oom | None
    fits_on: list[str]
    largest_batch_size: int | None = None
    """That would be admitted, if this one is not and it could be found out in time."""
    timings_ms: dict[str, int]
    """Filled in by who has a clock. ``run`` is 0 where an earlier run was replayed."""
    runtime: str
    versions: dict[str, str]

    def why(self, code: str) -> str:
        """Return what the reason with a code says, nothing if there is none."""
        return next((reason.message for reason in self.reasons if reason.code == code), "")


class FitEntry(_Part):
    """One GPU of the catalogue."""

    gpu: str
    capacity_bytes: int
    decision: Literal["admit", "uncertain", "reject", "unknown"]
    upper_bound_bytes: int | None
    headroom_bytes: int | None
    reason: Reason

    @classmethod
    def of(cls, gpu: GpuSpec, said: Estimate) -> FitEntry:
        """Keep of an estimate what a table shows."""
        return cls(
            gpu=gpu.name,
            capacity_bytes=gpu.memory_bytes,
            decision=said.decision,
            upper_bound_bytes=said.upper_bound_bytes,
            headroom_bytes=said.headroom_bytes,
            reason=said.reasons[0],
        )

    @classmethod
    def unknown(cls, gpu: GpuSpec, reason: Reason) -> FitEntry:
        """Say why nothing is known of a GPU."""
        return cls(
            gpu=gpu.name,
            capacity_bytes=gpu.memory_bytes,
            decision="unknown",
            upper_bound_bytes=None,
            headroom_bytes=None,
            reason=reason,
        )


class Fit(_Part):
    """Every GPU of the catalogue, the smallest first."""

    gpus: list[FitEntry]
    smallest: str | None
    """The smallest that admits the job."""
