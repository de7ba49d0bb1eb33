"""API keys: made, kept as digests, checked. The key itself is shown once and stored nowhere."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple

from memgate.errors import InputError
from memgate_worker.queue.store import JobStore

_KEYS = "memgate:keys"
_PREFIX = "mg"


class Role(IntEnum):
    """What a key allows; a higher role may do everything that a lower one may."""

    READ = 1
    SUBMIT = 2
    ADMIN = 3


class ApiKey(NamedTuple):
    """A key, without its secret."""

    key_id: str
    name: str
    role: Role
    created_at: str


def name_caller(key_id: str) -> str:
    """Return what a key's share of the queue goes by."""
    return f"key {key_id}"


class KeyRing:
    """The valid keys."""

    def __init__(self, store: JobStore) -> None:
        self._redis: Any = store.redis

    def make(self, name: str, role: Role) -> str:
        """Make a key and return it: nobody can read it again."""
        key_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        document = {
            "name": name,
            "role": role.name,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            # A random key of 256 bits needs no slow hash: it cannot be guessed.
            "digest": _digest(secret),
        }
        self._redis.hset(_KEYS, key_id, json.dumps(document))
        return f"{_PREFIX}_{key_id}_{secret}"

    def list(self) -> list[ApiKey]:
        """Return all keys, without their secrets."""
        found = self._redis.hgetall(_KEYS)
        return [_key(key_id.decode(), json.loads(text)) for key_id, text in sorted(found.items())]

    def revoke(self, key_id: str) -> None:
        """Revoke a key.

        Raises:
            InputError: if there is none.
        """
        if not self._redis.hdel(_KEYS, key_id):
            raise InputError(f"there is no key {key_id!r}; see: memgate keys list")

    def find(self, key_id: str) -> ApiKey | None:
        """Return a key by its id, None if it is not valid."""
        text = self._redis.hget(_KEYS, key_id)
        return _key(key_id, json.loads(text)) if text else None

    def check(self, shown: str) -> ApiKey | None:
        """Return the key that a caller sent, None if it is not valid."""
        prefix, _, rest = shown.partition("_")
        key_id, _, secret = rest.partition("_")
        text = self._redis.hget(_KEYS, key_id) if prefix == _PREFIX and key_id else None
        document = json.loads(text) if text else {"digest": _digest("")}
        is_right = hmac.compare_digest(_digest(secret), document["digest"])
        return _key(key_id, document) if text and is_right else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(key_id: str, document: dict[str, str]) -> ApiKey:
    return ApiKey(key_id, document["name"], Role[document["role"]], document["created_at"])
