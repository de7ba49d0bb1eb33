"""A line to memgate: a socket in the run's folder, a line of JSON for each message.

The other end is ``recorder.listening``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

#: when this process was started, in seconds since this machine was
BEGAN = time.clock_gettime(time.CLOCK_BOOTTIME)


class Connection:
    """A socket to memgate."""

    def __init__(self, run_dir: Path) -> None:
        self._address = str(run_dir / "socket")
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(self._address)
        self._lines = self._socket.makefile("rb")

    def reopen_in_a_fork(self) -> None:
        """Connect again if this process was forked since."""
        if self._pid != os.getpid():
            self._open()

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the answer; nothing if memgate has gone."""
        self.tell(**message)
        try:
            return dict(json.loads(self._lines.readline() or b"{}"))
        except OSError:
            return {}

    def tell(self, **message: Any) -> None:
        """Send a message; memgate may have gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hears_that_it_is_enough(self) -> bool:
        """Wait until memgate says so (True), or is gone."""
        try:
            return bool(self._lines.readline())
        except OSError:
            return False
