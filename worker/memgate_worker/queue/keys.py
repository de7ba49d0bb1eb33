"""API keys: made, kept as digests, checked. The key itself is shown once and stored nowhere.

What a key allows is a set of rights; roles are names for sets that go together.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from datetime import UTC, datetime
from enum import Enum, Flag, auto
from typing import Any, NamedTuple

from memgate.errors import InputError
from memgate_worker.queue.store import JobStore

_KEYS = "memgate:keys"
_PREFIX = "mg"


class Right(Flag):
    """One of the things that a key may allow."""

    READ_OWN = auto()
    """See what was asked with this key, or for its user; figures, and the catalogue."""
    READ_ALL = auto()
    """See everybody's questions."""
    SUBMIT = auto()
    """Ask, and withdraw what one has asked."""
    ON_BEHALF = auto()
    """Ask for others, by name, report what their jobs took, and write the audit."""
    HIGH_PRIORITY = auto()
    """Ask with ``priority: high``."""
    CANCEL_ALL = auto()
    """Withdraw others' questions."""
    OUTCOMES = auto()
    """Report what one's own jobs took."""
    ADMIN = auto()
    """Read the audit."""

    @property
    def names(self) -> list[str]:
        """As they are written on the command line."""
        return [(one.name or "").lower().replace("_", "-") for one in self]

    @classmethod
    def named(cls, name: str) -> Right:
        """Return a right by its name on the command line.

        Raises:
            KeyError: if there is none.
        """
        return cls[name.upper().replace("-", "_")]


class Role(Enum):
    """A name for a set of rights."""

    READ = Right.READ_OWN
    SUBMIT = Right.READ_OWN | Right.SUBMIT | Right.OUTCOMES
    GATE = (
        Right.READ_OWN
        | Right.READ_ALL
        | Right.SUBMIT
        | Right.ON_BEHALF
        | Right.HIGH_PRIORITY
        | Right.OUTCOMES
    )
    ADMIN = ~Right(0)

    @property
    def rights(self) -> Right:
        """What it allows."""
        return self.value


class ApiKey(NamedTuple):
    """A key, without its secret."""

    key_id: str
    name: str
    rights: Right
    created_at: str
    user: str = ""
    """Whose key it is, as gates call them: what they ask for this user is the key's own, too."""

    @property
    def role_name(self) -> str:
        """The role with just these rights; without one, the rights."""
        for role in Role:
            if role.rights == self.rights:
                return role.name.lower()
        return ",".join(self.rights.names)


class KeyRing:
    """The valid keys."""

    def __init__(self, store: JobStore) -> None:
        self._redis: Any = store.redis

    def make(self, name: str, rights: Right, user: str = "") -> str:
        """Make a key and return it: nobody can read it again."""
        key_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        document = {
            "name": name,
            "rights": rights.names,
            "role": _older_role(rights).name,
            "user": user,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            # A random key of 256 bits needs no slow hash: it cannot be guessed.
            "digest": _digest(secret),
        }
        self._redis.hset(_KEYS, key_id, json.dumps(document))
        return f"{_PREFIX}_{key_id}_{secret}"

    def list(self) -> list[ApiKey]:
        """Return all keys, without their secrets."""
        found = self._redis.hgetall(_KEYS)
        keys = (_key(key_id.decode(), json.loads(text)) for key_id, text in sorted(found.items()))
        return [key for key in keys if key is not None]

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


def _key(key_id: str, document: dict[str, Any]) -> ApiKey | None:
    """Read a key; None if a later version wrote what cannot be read here: it allows nothing."""
    try:
        if "rights" in document:
            rights = Right(0)
            for name in document["rights"]:
                rights |= Right.named(name)
        else:  # an older version's
            rights = Role[document["role"]].rights
        user = document.get("user", "")
        return ApiKey(key_id, document["name"], rights, document["created_at"], user)
    except (KeyError, TypeError, AttributeError):
        return None


def _older_role(rights: Right) -> Role:
    """Return what an older version, which reads only roles, takes a key for while both run."""
    fitting = (role for role in (Role.ADMIN, Role.SUBMIT) if role.rights in rights)
    return next(fitting, Role.READ)
