"""Requests whose exact bytes were answered before -> that answer, before FastAPI sees them.

Resolving a route's dependencies costs several times as much as such an answer. Anything unusual
about a request, its key included, is left to the routes: they refuse, this does not.

Each caller is given the answer as that of a question of their own: its id is put in where another's
was, and ``asked`` keeps it.

An answer is given again only while it is known that workers could have made it: once they announce
another identity, the store is asked, where the question starts over. See ``docs/caches.md``.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress
from typing import NamedTuple

import anyio.to_thread
from cachetools import LRUCache
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memgate.contract import JobRecord, WorkKind
from memgate_service.http.access import Gatekeeper
from memgate_service.http.asked import Asked
from memgate_service.http.errors import ProblemError
from memgate_service.http.metrics import Metrics
from memgate_service.http.ownership import asks_for_others, read_owner
from memgate_worker.queue.client import AskedQuestion, QueueClient, QueueError, make_question_id
from memgate_worker.queue.keys import Right

#: how often to ask which identities workers announce
_LOOK_SECONDS = 1.0


class CachedResponse(NamedTuple):
    """An answer, the run that gave it, and what made it."""

    run: str
    #: its bytes around the places where the id of the question goes
    parts: tuple[bytes, ...]
    #: digest of an ``EngineIdentity``
    identity: str
    #: what a key must allow to ask for it
    needed: Right

    @classmethod
    def of(cls, record: JobRecord, body: bytes, needed: Right = Right.SUBMIT) -> CachedResponse:
        """Keep the answer to somebody's question."""
        parts = tuple(body.split(record.id.encode()))
        return cls(record.run_id, parts, record.identity, needed)

    def body(self, question_id: str) -> bytes:
        """Return the answer to somebody else's question."""
        return question_id.encode().join(self.parts)


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
        asked: Asked,
        gatekeeper: Gatekeeper,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._answers = answers
        self._asked = asked
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
        asked = None if known is None else self._admit(Request(scope), question.kind, known)
        if known is None or asked is None:
            await self._app(scope, body.receive, send)
            return
        self._num_found.inc()
        self._asked.add(asked)
        scope["route"] = question
        scope["state"]["job"] = asked.id
        answer = known.body(asked.id)
        await send(_head(asked.id, len(answer)))
        await send({"type": "http.response.body", "body": answer})

    def _admit(
        self, request: Request, kind: WorkKind, known: CachedResponse
    ) -> AskedQuestion | None:
        """Return whose question it is; None if the routes must say what is wrong with it."""
        try:
            named = read_owner(request.scope["headers"])
        except ProblemError:
            return None
        needed = known.needed | Right.ON_BEHALF if asks_for_others(named) else known.needed
        if not self._gatekeeper.admits_at_once(request, needed):
            return None
        return AskedQuestion(
            id=make_question_id(),
            run=known.run,
            kind=kind,
            at=time.time(),
            key=getattr(request.state, "key", ""),
            cluster=named.get("cluster", ""),
            namespace=named.get("namespace", ""),
            user=named.get("user", ""),
            job_name=named.get("job_name", ""),
        )


def _is_plain_json(scope: Scope) -> bool:
    is_json = False
    for name, value in scope["headers"]:
        if name == b"content-type":
            is_json = value.partition(b";")[0].strip().lower() == b"application/json"
        elif name == b"content-encoding":
            return False
    return is_json


def _head(question_id: str, length: int) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-length", b"%d" % length),
            (b"content-type", b"application/json"),
            (b"location", b"/jobs/%b" % question_id.encode()),
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
