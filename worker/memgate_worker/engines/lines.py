"""Lines that come through a pipe, one by one, without reading further than what has come."""

from __future__ import annotations

import os
from collections.abc import Iterator

_AT_ONCE = 1 << 16


class Lines:
    """Lines of a file; whether there is more to read can be seen without waiting for it."""

    def __init__(self, number: int, first: bytes = b"") -> None:
        """Read from an open file.

        Args:
            number: of the file.
            first: what counts as read from it already.
        """
        self._number = number
        #: what was read after the last line
        self.rest = first

    def fileno(self) -> int:
        """Return the number of the file."""
        return self._number

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines, each with its end, until the file ends."""
        while True:
            line, end, rest = self.rest.partition(b"\n")
            if end:
                self.rest = rest
                yield line + end
            elif piece := os.read(self._number, _AT_ONCE):
                self.rest += piece
            else:
                return
