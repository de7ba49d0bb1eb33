"""How much the queue's server may store, and what it does when that is used up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from redis import Redis

#: the only policy with which nothing that was accepted is lost
_KEEPS_EVERYTHING = "noeviction"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """What the server says about its memory."""

    used_bytes: int
    #: 0: no limit of its own
    max_bytes: int
    #: what it does when the limit is reached
    policy: str
    #: it writes what it accepts to its disk, or would not take it
    can_write: bool

    @classmethod
    def read(cls, redis: Redis) -> Self:
        """Ask the server."""
        client: Any = redis  # redis-py types each answer as one that may have to be awaited
        said = client.info("memory")
        written = client.info("persistence")
        return cls(
            used_bytes=int(said["used_memory"]),
            max_bytes=int(said.get("maxmemory", 0)),
            policy=str(said.get("maxmemory_policy", _KEEPS_EVERYTHING)),
            can_write=written.get("aof_last_write_status", "ok") == "ok",
        )

    @property
    def is_full(self) -> bool:
        """Nothing more can be stored."""
        return 0 < self.max_bytes <= self.used_bytes and self.policy == _KEEPS_EVERYTHING

    @property
    def loses_entries(self) -> bool:
        """The server drops what was accepted once its limit is reached."""
        return self.max_bytes > 0 and self.policy != _KEEPS_EVERYTHING
