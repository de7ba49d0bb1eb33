"""Callers take turns inside a service: a few requests of each are worked on at the same time.

Python computes one thing at a time, so a known answer for one caller would wait behind all that
sixty-four connections of another have sent. A request that waits for a job has no turn. What is
refused because its caller asks too often is told so a little later each time, up to a second: a
caller that asks again as soon as it is refused must not keep the service busy with refusals.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from hashlib import blake2b

from cachetools import LRUCache
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: requests of one caller that are worked on at the same time: fewer than there are threads that
#: submit questions
_MAX_AT_ONCE = 3

#: a turn is not waited for longer than this: a caller's own slow requests do not stop its others
_PATIENCE_SECONDS = 1.0

#: how much later each refusal is sent than the one before, at the most, and after how much time
#: without one the next is sent at once
_DELAY_STEP_SECONDS, _MAX_DELAY_SECONDS, _FORGIVEN_SECONDS = 0.02, 1.0, 5.0

#: refusals that are held back at the same time, of all callers
_MAX_HELD = 1024

_NUM_CALLERS = 10_000

#: where callers say who they are; the first that is there counts, or a caller with a key would have
#: more turns by adding cookies
_CREDENTIALS = (b"authorization", b"x-api-key", b"cookie")

_TOO_MANY = 429


class _Line:
    """What is known of one caller."""

    __slots__ = ("delay", "places", "refused_at")

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(_MAX_AT_ONCE)
        self.delay = 0.0
        self.refused_at = 0.0


class _Turn:
    """A place that a request may hold."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: asyncio.Semaphore | None = None

    async def begin(self, places: asyncio.Semaphore) -> None:
        """Wait for a place, but not for long."""
        if places.locked():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await places.acquire()
                    self._places = places
        else:
            await places.acquire()
            self._places = places

    def end(self) -> None:
        """Give the place to the caller's next request."""
        if self._places is not None:
            self._places.release()
            self._places = None


_current: ContextVar[_Turn | None] = ContextVar("turn", default=None)


def end_turn() -> None:
    """Let the caller's next request begin: this one waits for something else from now on."""
    turn = _current.get()
    if turn is not None:
        turn.end()


class CallerTurns:
    """Middleware: has requests of one caller take turns; those without a key pass."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lines: LRUCache[bytes, _Line] = LRUCache(_NUM_CALLERS)
        self._num_held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request when it is its caller's turn."""
        line = self._find_line(scope) if scope["type"] == "http" else None
        if line is None:
            await self._app(scope, receive, send)
            return
        turn = _Turn()

        async def send_later(message: Message) -> None:
            turn.end()
            if message["type"] == "http.response.start" and message["status"] == _TOO_MANY:
                await self._hold_back(line)
            await send(message)

        await turn.begin(line.places)
        token = _current.set(turn)
        try:
            await self._app(scope, receive, send_later)
        finally:
            _current.reset(token)
            turn.end()

    def _find_line(self, scope: Scope) -> _Line | None:
        headers = dict(scope["headers"])
        shown = next((headers[name] for name in _CREDENTIALS if name in headers), None)
        if shown is None:
            return None
        name = blake2b(shown, digest_size=16).digest()
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        return line

    async def _hold_back(self, line: _Line) -> None:
        now = asyncio.get_running_loop().time()
        if now - line.refused_at > _FORGIVEN_SECONDS:
            line.delay = 0.0
        line.refused_at = now
        if line.delay and self._num_held < _MAX_HELD:
            self._num_held += 1
            try:
                await asyncio.sleep(line.delay)
            finally:
                self._num_held -= 1
        line.delay = min(line.delay + _DELAY_STEP_SECONDS, _MAX_DELAY_SECONDS)
