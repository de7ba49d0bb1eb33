"""What the operator sets for all that touches the queue: ``MEMGATE_*`` environment variables."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from memgate.units import MIB


class Settings(BaseSettings):
    """What programs read when they start."""

    model_config = SettingsConfigDict(env_prefix="MEMGATE_")

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment, or end the program with a sentence per wrong variable."""
        try:
            return cls()
        except ValidationError as error:
            sys.exit("\n".join(map(_sentence, error.errors())))


class QueueSettings(Settings):
    """Where the queue is, and what it may hold. The same for service and workers."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Redis or Valkey; ``MEMGATE_REDIS_URL``. All machines that share it form one memgate."""

    result_ttl_seconds: Annotated[int, Field(ge=60)] = 7 * 24 * 3600
    """How long answers are kept; ``MEMGATE_RESULT_TTL_SECONDS``."""

    trace_ttl_seconds: Annotated[int, Field(ge=60)] = 3600
    """How long uploaded traces are kept; ``MEMGATE_TRACE_TTL_SECONDS``."""

    max_jobs: Annotated[int, Field(ge=1)] = 100_000
    """How many jobs are remembered, the newest; ``MEMGATE_MAX_JOBS``."""

    max_queued: Annotated[int, Field(ge=1)] = 10_000
    """How many jobs may wait; ``MEMGATE_MAX_QUEUED``."""

    max_timelines_bytes: Annotated[int, Field(ge=1)] = 512 * MIB
    """How much the cache of timelines, and of the curves that pages show, may hold;
    ``MEMGATE_MAX_TIMELINES_BYTES``."""

    lease_seconds: Annotated[float, Field(ge=1)] = 10.0
    """A worker that is silent for so long is lost, and its job goes to another;
    ``MEMGATE_LEASE_SECONDS``."""

    max_attempts: Annotated[int, Field(ge=1)] = 5
    """How many workers may be lost over one job before it counts as failed;
    ``MEMGATE_MAX_ATTEMPTS``."""

    @field_validator("redis_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if not url.startswith(("redis://", "rediss://", "unix://")):
            # Not the value: it may hold a password.
            raise ValueError("begins with redis://, rediss:// (TLS) or unix:// (a socket)")
        return url


def _sentence(problem: Any) -> str:
    """Name the variable and the rule; the value too, unless there may be a password in it."""
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(problem["loc"][0])
    value = "wrong" if name == "redis_url" else repr(problem["input"])
    return f"MEMGATE_{name.upper()} is {value}: {problem['msg']}"
