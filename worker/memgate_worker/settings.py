"""What the operator sets for a worker: ``MEMGATE_*`` environment variables."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from memgate.units import GIB, MIB
from memgate_worker.hub import check_endpoint
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.queue.settings import QueueSettings
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.policy import SandboxPolicy
from memgate_worker.uploads.question import DEFAULT_SECONDS


class WorkerSettings(QueueSettings):
    """How much of its machine a worker may take."""

    queues: str = "fast,slow"
    """What it works on, ``fast``, ``slow`` or both; ``MEMGATE_QUEUES``."""

    @field_validator("queues")
    @classmethod
    def _are_queues(cls, names: str) -> str:
        if not {name.strip() for name in names.split(",")} <= {"fast", "slow"}:
            raise ValueError("write 'fast', 'slow' or 'fast,slow'")
        return names

    job_timeout_seconds: Annotated[float, Field(ge=1)] = DEFAULT_LIMITS.seconds
    """The longest that a job's own code may run, all runs for one question together;
    ``MEMGATE_JOB_TIMEOUT_SECONDS``."""

    job_memory_bytes: Annotated[int, Field(ge=256 * MIB)] = DEFAULT_LIMITS.memory_bytes
    """The most memory that a job's own process may take; ``MEMGATE_JOB_MEMORY_BYTES``."""

    max_trace_bytes: Annotated[int, Field(ge=MIB)] = GIB
    """The longest uploaded trace, uncompressed; ``MEMGATE_MAX_TRACE_BYTES``."""

    upload_timeout_seconds: Annotated[float, Field(ge=1)] = DEFAULT_SECONDS
    """The most processor time that reading and judging an uploaded trace may take;
    ``MEMGATE_UPLOAD_TIMEOUT_SECONDS``."""

    advice_seconds: Annotated[float, Field(ge=0)] = 2.0
    """How long to look for a batch size that fits when a job is rejected;
    ``MEMGATE_ADVICE_SECONDS``."""

    hub: str = ""
    """Where the ``config.json`` of models that have no name in memgate is looked up, such as
    ``https://huggingface.co``; empty: nowhere; ``MEMGATE_HUB``."""

    @field_validator("hub")
    @classmethod
    def _is_an_endpoint(cls, url: str) -> str:
        return check_endpoint(url)

    sandbox: Level | None = None
    """The sandbox that runs what callers ask for: ``root``, ``namespaces``, ``landlock`` or
    ``none``; None: the strictest that works; ``MEMGATE_SANDBOX``."""

    sandbox_level: Level = Level.NONE
    """Below this level nothing of a caller's is run; ``MEMGATE_SANDBOX_LEVEL``."""

    @property
    def sandbox_policy(self) -> SandboxPolicy:
        """Which sandbox runs what callers ask for."""
        return SandboxPolicy(use=self.sandbox, least=self.sandbox_level)

    @property
    def run_limits(self) -> RunLimits:
        """How much of this worker's machine a job may take."""
        return RunLimits(memory_bytes=self.job_memory_bytes, seconds=self.job_timeout_seconds)
