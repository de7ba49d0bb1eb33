"""A store that answers for ranks that do not exist: as if each of them did what this one does.

``torch.distributed`` finds its processes, and counts them, through a store of keys and values. Here
there is one process. What it sets under its own rank's number is there under every other one; what
it adds, all add; nobody is waited for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

#: NCCL's ids are of this length, and ours are blank
_NCCL_ID = bytes(128)

#: the last part of a key under which the first rank leaves one: a number, or those of two ranks
_NCCL_KEY = re.compile(r"(^|/)(\d+|\d+:\d+)$|nccl|unique_id", re.IGNORECASE)

_NUMBER = re.compile(r"\d+")

#: C++ calls methods of a store, but does not keep the Python object that has them
_kept: list[Any] = []


class RankStore(dist.Store):
    """The store of one rank on behalf of all. Called from torch's own threads, too."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self._rank = rank
        self._world_size = world_size
        self._values: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}
        self._lock = threading.RLock()
        _kept.append(self)

    def clone(self) -> RankStore:
        """Return the same: it is safe to be used by several threads."""
        return self

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        with self._lock:
            self._values[key] = _to_bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value, or what another rank would have set if it did the same.

        Raises:
            RuntimeError: this rank has set nothing like it, so it would be another one's own.
        """
        with self._lock:
            found = self._find(key)
        if found is not None:
            return found
        if _NCCL_KEY.search(key):
            return _NCCL_ID
        raise RuntimeError(
            f"memgate: another rank would set {key!r} in the store, and rank {self._rank} of"
            f" {self._world_size} is the only one that is run; what it would be is not known"
        )

    def _find(self, key: str) -> bytes | None:
        return next((self._values[one] for one in self._own_keys(key) if one in self._values), None)

    def _own_keys(self, key: str) -> Iterator[str]:
        """Yield a key, and what it would be with this rank's number in it, the last place first."""
        yield key
        for number in reversed(list(_NUMBER.finditer(key))):
            yield f"{key[: number.start()]}{self._rank}{key[number.end() :]}"

    def add(self, key: str, amount: int) -> int:
        """Add an amount for each rank."""
        with self._lock:
            count = int(self._values.get(key, b"0")) + amount * self._world_size
            self._values[key] = str(count).encode()
            return count

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are set."""
        with self._lock:
            return all(self._find(key) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for nobody."""

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a value if it is the expected one, or is not there and nothing is expected."""
        with self._lock:
            now = self._values.get(key)
            if now == _to_bytes(expected) or (now is None and not _to_bytes(expected)):
                now = self._values[key] = _to_bytes(desired)
            return _to_bytes(expected) if now is None else now

    def append(self, key: str, value: Any) -> None:
        """Append to a value."""
        with self._lock:
            self._values[key] = self._values.get(key, b"") + _to_bytes(value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set several values."""
        for key, value in zip(keys, values):
            self.set(key, value)

    def delete_key(self, key: str) -> bool:
        """Delete a value; tell whether it was there."""
        with self._lock:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return how many values there are."""
        return len(self._values)

    def list_keys(self) -> list[str]:
        """Return all keys."""
        with self._lock:
            return list(self._values)

    def has_extended_api(self) -> bool:
        """``append``, ``multi_get`` and ``multi_set`` are there."""
        return True

    def queue_push(self, key: str, value: Any) -> None:
        """Put a value at the end of a queue."""
        with self._lock:
            self._queues.setdefault(key, []).append(_to_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value of a queue."""
        with self._lock:
            return self._queues[key].pop(0)

    def queue_len(self, key: str) -> int:
        """Return how many values a queue has."""
        with self._lock:
            return len(self._queues.get(key, []))

    # what C++ calls them
    deleteKey = delete_key
    getNumKeys = num_keys


class LoneTCPStore(RankStore):
    """Instead of a ``TCPStore`` that would wait for other ranks, or for the one that serves it."""

    def __init__(self, host_name: str, port: int, world_size: int, rank: int) -> None:
        super().__init__(rank, world_size)
        self.host = host_name
        self.port = port


def _to_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
