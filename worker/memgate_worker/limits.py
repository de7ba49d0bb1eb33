"""How much of this machine a job's own process may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memgate.errors import HostMemoryError, InputError, MemgateError, TimeLimitError
from memgate.units import GIB, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How much a job's process, and what it starts, may take."""

    seconds: float = 600.0
    memory_bytes: int = 8 * GIB

    @classmethod
    def of(cls, timeout_seconds: float | None, host_memory_bytes: int | None) -> RunLimits:
        """Return the limits that a caller gave, with defaults for the others.

        Raises:
            InputError: if one of them is not above 0.
        """
        given = {"timeout_seconds": timeout_seconds, "host_memory_bytes": host_memory_bytes}
        for name, value in given.items():
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}: give a number above 0")
        return cls(
            seconds=DEFAULT_LIMITS.seconds if timeout_seconds is None else timeout_seconds,
            memory_bytes=(
                DEFAULT_LIMITS.memory_bytes if host_memory_bytes is None else host_memory_bytes
            ),
        )

    @property
    def allowed_memory(self) -> str:
        """The memory limit, whose it is, and how to raise it: the end of a sentence."""
        return (
            f"{format_size(self.memory_bytes)}, which is memgate's limit and not the job's fault;"
            " allow more with --host-memory GIB (of workers: MEMGATE_JOB_MEMORY_BYTES)"
        )

    def after(self, seconds: float) -> RunLimits:
        """Return what is left for a second run, after one that took some seconds.

        Raises:
            TimeLimitError: if there is no time for one that takes as long.
        """
        left = self.seconds - seconds
        if left < seconds:
            raise TimeLimitError(
                f"the first run took {seconds:.1f} s of the {self.seconds:g} s for both, which is"
                " memgate's limit and not the job's fault; allow more with --timeout SECONDS"
            )
        return replace(self, seconds=left)

    def exceeded_by(self, error: MemgateError) -> dict[str, float]:
        """Return the limit that a job has exceeded, by name; empty for another error."""
        if isinstance(error, HostMemoryError):
            return {"memory_bytes": self.memory_bytes}
        return {"seconds": self.seconds} if isinstance(error, TimeLimitError) else {}


#: unless a caller or an operator says otherwise
DEFAULT_LIMITS = RunLimits()
