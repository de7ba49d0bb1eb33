"""Limits on what a client sends: how long a body may be, and how long it may take."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from starlette.types import Message, Receive

from memgate_service.http.errors import ProblemError

#: how long a client that sends too much may go on, so that it sees our response, not a reset
_DRAIN_SECONDS = 2.0

_LENGTH = re.compile(rb"[0-9]{1,18}")

_CLOSE = {"Connection": "close"}


class LimitedBody:
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
            raise ProblemError(408, detail, headers=_CLOSE) from None
        self._num_bytes += len(message.get("body", b""))
        self._is_over = not message.get("more_body", False)
        if self._num_bytes > self._most:
            if not self._is_over:
                await drain(self._receive, self._most)
            raise too_large(self._most)
        return message


async def drain(receive: Receive, most: int) -> None:
    """Discard what arrives: up to so many bytes, for a moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while most > 0:
                message = await receive()
                most -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def declared_length(headers: dict[bytes, bytes]) -> int:
    """Return the declared length of a body; the server handles what is not a number."""
    text = headers.get(b"content-length", b"0")
    return int(text) if _LENGTH.fullmatch(text) else 0


def too_large(most: int) -> ProblemError:
    """Refuse a body that is too long."""
    detail = (
        f"such a request may have {most:,} bytes; profile fewer iterations, or ask the operator"
    )
    return ProblemError(413, detail, headers=_CLOSE)
