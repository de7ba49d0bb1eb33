"""What the operator sets for the service: ``MEMGATE_*`` variables, listed in docs/operations.md."""

from __future__ import annotations

from worker.settings import QueueSettings


class ServiceSettings(QueueSettings):
    """Where the service listens, beside where the queue is."""

    host: str = "127.0.0.1"
    """Address to listen on; ``MEMGATE_HOST``."""

    port: int = 8080
    """Port to listen on; ``MEMGATE_PORT``."""
