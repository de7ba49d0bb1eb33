"""uvicorn's HTTP protocol, with limits on what comes before a body.

Without them a client may send headers forever, and they are kept. Also, what is not HTTP gets a
problem document, like everything else.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from memgate_service.http.errors import CODE_OF_STATUS, problem

#: of a request's first line and headers together
MAX_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """A connection that limits the time and the size of a request's head."""

    #: how long the first line and the headers of a request may take
    head_seconds = 60.0

    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _num_bytes = 0
    _status = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not forever."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before a body: the parser keeps a header until it is complete."""
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._num_bytes += len(data)
            if self._num_bytes > MAX_HEAD_BYTES:
                self._refuse(431)

    def on_message_begin(self) -> None:
        """Wait for the rest of a request's head."""
        super().on_message_begin()
        if not self._is_in_head:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Start the request, unless its headers are too large."""
        self._is_in_head = False
        self._stop_timer()
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > MAX_HEAD_BYTES:
            self._status = 431
            raise ValueError("headers are too large")  # the parser stops, and calls us below
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser stopped at."""
        self._refuse(self._status)

    def _expect_head(self) -> None:
        self._is_in_head = True
        self._num_bytes = 0
        self._stop_timer()
        self._timer = self.loop.call_later(self.head_seconds, self._refuse, 408)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(_plain_answer(status, self.head_seconds))
            self.transport.close()


def bounded_protocol(seconds: float) -> type[BoundedProtocol]:
    """Make a protocol that waits this long for the head of a request."""
    return type("BoundedProtocol", (BoundedProtocol,), {"head_seconds": seconds})


def _plain_answer(status: int, head_seconds: float) -> bytes:
    detail = {
        400: "this is not an HTTP request",
        408: f"no request was sent within {head_seconds:g} s",
        431: f"the headers of a request may have {MAX_HEAD_BYTES:,} bytes",
    }[status]
    answer = problem(status, CODE_OF_STATUS[status], detail, headers={"Connection": "close"})
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in answer.raw_headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body)
