"""The answer of every door: an estimate."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


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
    timings_ms: dict[str, int]
    """Filled in by who has a clock."""
    runtime: str
    versions: dict[str, str]
