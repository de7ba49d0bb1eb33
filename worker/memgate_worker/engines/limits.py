"""What a job's own process may take of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from memgate.errors import InputError
from memgate_worker.engines.client import (
    DEFAULT_HOST_MEMORY_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    Limits,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What the process of a job, and what it starts, may take."""

    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    host_memory_bytes: int = DEFAULT_HOST_MEMORY_BYTES

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "host_memory_bytes"):
            value = getattr(self, name)
            if not value > 0:
                raise InputError(f"{name} is {value}: give a number above 0")

    @classmethod
    def of(cls, timeout_seconds: float | None, host_memory_bytes: int | None) -> RunLimits:
        """Return the limits that a caller gave, and the defaults of the others."""
        return cls(
            timeout_seconds=(
                DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
            ),
            host_memory_bytes=(
                DEFAULT_HOST_MEMORY_BYTES if host_memory_bytes is None else host_memory_bytes
            ),
        )

    def as_arguments(self) -> Limits:
        """Return them as engines take them."""
        return {
            "timeout_seconds": self.timeout_seconds,
            "host_memory_bytes": self.host_memory_bytes,
        }


DEFAULT_LIMITS = RunLimits()
