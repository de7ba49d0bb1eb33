"""Around every request: an id, limits on its body, a log line, figures, and sober headers.

Plain ASGI: it is on the way of each answer from the cache, and must cost next to nothing.
"""

from __future__ import annotations

import asyncio
import time
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ProblemError, problem
from service.metrics import Metrics
from service.settings import ServiceSettings
from worker.logs import write_line

#: of every answer that does not say otherwise
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
#: asked for by machines all day long: counted, not logged
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


class Envelope:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _clean(headers.get(b"x-request-id")) or token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        start = time.perf_counter()
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message["headers"] = list(message.get("headers", ()))
                names = {name for name, _ in given}
                given.append((b"x-request-id", request_id.encode()))
                given.extend(header for header in _HEADERS if header[0] not in names)
            await send(message)

        try:
            await self._limited(scope, headers, receive, send_with_headers)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - start)

    async def _limited(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        is_upload = headers.get(b"content-type", b"").startswith(b"multipart/")
        settings = self._settings
        most = settings.max_upload_bytes if is_upload else settings.max_body_bytes
        if _declared(headers) > most:
            await _too_large(most)(scope, receive, send)
            return
        body = _Body(receive, most, settings.body_timeout_seconds)
        await self._app(scope, body.receive, send)

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"]
        self._metrics.note_request(method, route, status, seconds)
        if route in _QUIET:
            return
        state: dict[str, Any] = scope["state"]
        line = {
            "request": request_id,
            "method": method,
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        for name in ("job", "key"):
            if name in state:
                line[name] = state[name]
        write_line("request", line)


class _Body:
    """A request's body as it comes in: not too long, and not too slowly."""

    def __init__(self, receive: Receive, most: int, timeout_seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._timeout_seconds = timeout_seconds
        self._num_bytes = 0
        self._is_over = False
        self._deadline: float | None = None

    async def receive(self) -> Message:
        """Return the next piece.

        Raises:
            ProblemError: 413 or 408.
        """
        if self._is_over:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._timeout_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            detail = f"the request was not sent within {self._timeout_seconds:g} s"
            raise ProblemError(408, detail, headers={"Connection": "close"}) from None
        self._num_bytes += len(message.get("body", b""))
        self._is_over = not message.get("more_body", False)
        if self._num_bytes > self._most:
            raise ProblemError(413, _too_large_text(self._most), headers={"Connection": "close"})
        return message


def _declared(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _too_large(most: int) -> Any:
    return problem(413, "TOO_LARGE", _too_large_text(most), headers={"Connection": "close"})


def _too_large_text(most: int) -> str:
    return f"such a request may have {most:,} bytes; profile fewer iterations, or ask the operator"


def _clean(shown: bytes | None) -> str | None:
    """Take a caller's id if it is one: it goes into logs."""
    if shown and len(shown) <= 64 and shown.replace(b"-", b"").isalnum():
        return shown.decode("ascii")
    return None
