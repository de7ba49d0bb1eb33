"""What the operator sets for all that touches the queue: ``MEMGATE_*`` environment variables."""

from __future__ import annotations

from pydantic import RedisDsn
from pydantic_settings import BaseSettings, SettingsConfigDict


class QueueSettings(BaseSettings):
    """Where the queue is."""

    model_config = SettingsConfigDict(env_prefix="MEMGATE_")

    redis_url: RedisDsn = RedisDsn("redis://127.0.0.1:6379/0")
    """Redis or Valkey; ``MEMGATE_REDIS_URL``. All machines that share it form one memgate."""
