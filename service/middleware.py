"""Around every request: an id, limits on its body, a log line, figures, and sober headers.

Plain ASGI: it is on the way of each answer from the cache, and must cost next to nothing.
"""

from __future__ import annotations

import asyncio
import time
from secrets import token_hex
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ProblemError, problem
from service.metrics import Metrics
from service.settings import ServiceSettings

_log = structlog.get_logger("memgate.service")

_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}
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
        headers = Headers(scope=scope)
        request_id = _clean(headers.get("x-request-id")) or token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        start = time.perf_counter()
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["x-request-id"] = request_id
                for name, value in _HEADERS.items():
                    out.setdefault(name, value)
            await send(message)

        try:
            await self._limited(scope, headers, receive, send_with_headers)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - start)

    async def _limited(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        is_upload = headers.get("content-type", "").startswith("multipart/")
        settings = self._settings
        most = settings.max_upload_bytes if is_upload else settings.max_body_bytes
        if _declared(headers) > most:
            await _too_large(most)(scope, receive, send)
            return
        body = _Body(receive, most, settings.body_timeout_seconds)
        await self._app(scope, body.receive, send)

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if route in _QUIET:
            return
        state: dict[str, Any] = scope["state"]
        _log.info(
            "request",
            request=request_id,
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 1),
            **{name: state[name] for name in ("job", "key") if name in state},
        )


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


def _declared(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdigit() else 0


def _too_large(most: int) -> Any:
    return problem(413, "TOO_LARGE", _too_large_text(most), headers={"Connection": "close"})


def _too_large_text(most: int) -> str:
    return f"such a request may have {most:,} bytes; profile fewer iterations, or ask the operator"


def _clean(request_id: str | None) -> str | None:
    """Take a caller's id if it is one: it goes into logs."""
    if request_id and len(request_id) <= 64 and request_id.replace("-", "").isalnum():
        return request_id
    return None
