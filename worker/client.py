"""What the service may ask of the queue. Imports no torch and runs no job."""

from __future__ import annotations

from redis import Redis
from redis.exceptions import RedisError


class QueueClient:
    """A connection to the queue, opened when it is first used."""

    def __init__(self, redis_url: str) -> None:
        # Short: whoever asks waits for the answer.
        self._redis: Redis = Redis.from_url(redis_url, socket_connect_timeout=2, socket_timeout=2)

    def unreachable_because(self) -> str | None:
        """Return why the queue cannot be reached, None if it can. Never shows the password."""
        try:
            self._redis.ping()
        except RedisError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def close(self) -> None:
        """Give the connections back."""
        self._redis.close()
