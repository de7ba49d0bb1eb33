"""Requests whose exact bytes were answered before -> that answer, before FastAPI sees them.

Resolving a route's dependencies costs several times as much as such an answer. Anything unusual
about a request, its key included, is left to the routes: they refuse, this does not.

An answer is given again only while it is known that workers could have made it: once they announce
another identity, the store is asked, where the question starts over. See ``docs/caches.md``.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import NamedTuple

import anyio.to_thread
from cachetools import LRUCache
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memgate.contract import WorkKind
from memgate_service.http.access import Gatekeeper
from memgate_service.http.errors import ProblemError
from memgate_service.http.metrics import Metrics
from memgate_worker.queue.client import QueueClient, QueueError
from memgate_worker.queue.keys import Role

#: how often to ask which identities workers announce
_LOOK_SECONDS = 1.0


class CachedResponse(NamedTuple):
    """An answer, the job that gave it, and what made it."""

    job_id: str
    body: bytes
    #: digest of an ``EngineIdentity``
    identity: str


class ResponseCache:
    """The newest answers, by the digest of the request, that today's workers could have made."""

    def __init__(self, max_responses: int) -> None:
        self._responses: LRUCache[bytes, CachedResponse] = LRUCache(max_responses)
        #: what workers announced last; None: nothing yet, so every answer counts
        self._identities: frozenset[str] | None = None

    def get(self, key: bytes) -> CachedResponse | None:
        """Return an answer that still counts."""
        found = self._responses.get(key)
        if found is None or self._identities is None or found.identity in self._identities:
            return found
        return None

    def __setitem__(self, key: bytes, response: CachedResponse) -> None:
        self._responses[key] = response

    def use_identities(self, identities: frozenset[str]) -> None:
        """Give only answers of these identities from now on; without workers, those of the last."""
        if identities:
            self._identities = identities

    def clear(self) -> None:
        """Forget all answers."""
        self._responses.clear()

    async def keep_current(self, queue: QueueClient) -> None:
        """Follow what workers announce while the service runs."""
        while True:
            with suppress(QueueError):  # it may be back the next time
                self.use_identities(await anyio.to_thread.run_sync(queue.identities))
            await asyncio.sleep(_LOOK_SECONDS)


class _Question(NamedTuple):
    """A stand-in for a route: what the log and the metrics need to know about it."""

    path: str
    kind: WorkKind


_QUESTIONS = {f"/{kind}": _Question(f"/{kind}", kind) for kind in WorkKind}


def cache_key(kind: WorkKind, body: bytes) -> bytes:
    """Name the exact bytes of a request."""
    return hashlib.sha256(kind.encode() + b"\0" + body).digest()


class CachedResponses:
    """Middleware: gives answers that are in the cache, and passes on the rest."""

    def __init__(
        self,
        app: ASGIApp,
        answers: ResponseCache,
        gatekeeper: Gatekeeper,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._answers = answers
        self._gatekeeper = gatekeeper
        self._num_found = metrics.cache_lookups.labels("memory")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        question = _QUESTIONS.get(scope["path"]) if scope["type"] == "http" else None
        if question is None or scope["method"] != "POST" or not _is_plain_json(scope):
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        known = self._answers.get(cache_key(question.kind, await body.read()))
        if known is None or not self._gatekeeper.admits_at_once(Request(scope), Role.SUBMIT):
            await self._app(scope, body.receive, send)
            return
        self._num_found.inc()
        scope["route"] = question
        scope["state"]["job"] = known.job_id
        await send(_head(known))
        await send({"type": "http.response.body", "body": known.body})


def _is_plain_json(scope: Scope) -> bool:
    is_json = False
    for name, value in scope["headers"]:
        if name == b"content-type":
            is_json = value.partition(b";")[0].strip().lower() == b"application/json"
        elif name == b"content-encoding":
            return False
    return is_json


def _head(known: CachedResponse) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-length", b"%d" % len(known.body)),
            (b"content-type", b"application/json"),
            (b"location", b"/jobs/%b" % known.job_id.encode()),
            (b"x-memgate-cache", b"memory"),
        ],
    }


class _Body:
    """A request's body, read here and given again to the next reader."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: list[Message] = []
        self._refusal: ProblemError | None = None

    async def read(self) -> bytes:
        """Return all of it; nothing if it is refused, as the next reader will be told."""
        goes_on = True
        while goes_on:
            try:
                message = await self._receive()
            except ProblemError as refusal:
                self._refusal = refusal
                return b""
            self._read.append(message)
            goes_on = message.get("more_body", False)
        if len(self._read) == 1:
            return bytes(self._read[0].get("body", b""))
        return b"".join(message.get("body", b"") for message in self._read)

    async def receive(self) -> Message:
        """Return the next piece, as it came in."""
        if self._read:
            return self._read.pop(0)
        if self._refusal is not None:
            raise self._refusal
        return await self._receive()
