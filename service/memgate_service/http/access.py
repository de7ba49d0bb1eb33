"""Who may do what: API keys, rights and rates. Off only where the service listens on loopback."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import anyio.to_thread
from cachetools import TTLCache
from fastapi import Request
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from memgate_service.http.errors import ProblemError
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.keys import ApiKey, KeyRing, Right

#: how long a revoked key may still be accepted
_REMEMBERED_SECONDS = 10.0


class Gatekeeper:
    """Checks keys; remembers them for a moment."""

    def __init__(self, settings: ServiceSettings, keys: KeyRing) -> None:
        self._needs_keys = settings.needs_keys
        self._rate = settings.rate
        self._keys = keys
        self._known: TTLCache[bytes, ApiKey] = TTLCache(10_000, _REMEMBERED_SECONDS)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    def admits_at_once(self, request: Request, needed: Right) -> bool:
        """Let a request in if its key is remembered; otherwise ``admit`` decides, and says why."""
        if not self._needs_keys:
            return True
        key = self._known.get(digest_of(_shown_key(request)))
        if key is None or needed not in key.rights:
            return False
        if not self._limiter.hit(self._rate, key.key_id):
            return False
        request.state.key, request.state.api_key = key.key_id, key
        return True

    async def admit(self, request: Request, needed: Right) -> None:
        """Let a request in, or refuse it.

        Raises:
            ProblemError: 401 without a key, 403 if it lacks a right, 429 if it asks too often.
        """
        if not self._needs_keys:
            return
        key = await self._find(_shown_key(request))
        if key is None:
            raise ProblemError(
                401,
                "send a key as 'Authorization: Bearer KEY'; make one with: memgate keys create",
                headers={"WWW-Authenticate": "Bearer"},
            )
        self.let_in(request, key, needed)

    def let_in(self, request: Request, key: ApiKey, needed: Right) -> None:
        """Let a request in whose key is known, or refuse it.

        Raises:
            ProblemError: 403 if it lacks a right, 429 if it asks too often.
        """
        request.state.key, request.state.api_key = key.key_id, key
        if needed not in key.rights:
            raise refuse_right(key, needed, "this")
        if not self._limiter.hit(self._rate, key.key_id):
            reset = self._limiter.get_window_stats(self._rate, key.key_id).reset_time
            raise ProblemError(
                429,
                f"key {key.key_id} may ask {self._rate} at most",
                headers={"Retry-After": str(max(1, round(reset - time.time())))},
            )

    async def _find(self, shown: str) -> ApiKey | None:
        if not shown:
            return None
        digest = digest_of(shown)
        key = self._known.get(digest)
        if key is None:
            key = await anyio.to_thread.run_sync(self._keys.check, shown)
            if key is not None:  # set once: otherwise every use would extend its TTL
                self._known[digest] = key
        return key


def digest_of(shown: str) -> bytes:
    """Return the name under which a key is remembered: not the key itself."""
    return hashlib.sha256(shown.encode()).digest()


def _shown_key(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("x-api-key", "")


def refuse_right(key: ApiKey, needed: Right, what: str) -> ProblemError:
    """Make the refusal of what a key does not allow."""
    lacks = ", ".join((needed & ~key.rights).names)
    return ProblemError(
        403,
        f"{what} needs a key with the right {lacks}, and {key.key_id} has"
        f" {', '.join(key.rights.names) or 'none'}; an operator makes one with: memgate keys create"
        f" NAME --rights {','.join((key.rights | needed).names)}",
    )


def needs(right: Right) -> Callable[[Request], object]:
    """Make a dependency that admits only keys with a right."""

    async def check(request: Request) -> None:
        gatekeeper: Gatekeeper = request.app.state.dependencies.gatekeeper
        await gatekeeper.admit(request, right)

    return check
