"""What the operator sets for all that touches the queue: ``MEMGATE_*`` environment variables."""

from __future__ import annotations

import sys
from typing import Self

from pydantic import RedisDsn, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class QueueSettings(BaseSettings):
    """Where the queue is."""

    model_config = SettingsConfigDict(env_prefix="MEMGATE_")

    redis_url: RedisDsn = RedisDsn("redis://127.0.0.1:6379/0")
    """Redis or Valkey; ``MEMGATE_REDIS_URL``. All machines that share it form one memgate."""

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment, or end the program with a sentence per wrong variable."""
        try:
            return cls()
        except ValidationError as error:
            sys.exit(
                "\n".join(
                    f"MEMGATE_{str(problem['loc'][0]).upper()} is {problem['input']!r}:"
                    f" {problem['msg']}"
                    for problem in error.errors()
                )
            )
