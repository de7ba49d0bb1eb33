"""Tells memgate what ended a process: the exception, and where it was raised."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from .connection import Connection

#: so many frames are told, from the last one up
_NUM_FRAMES = 6


def tell_failures() -> None:
    """From now on, tell of exceptions that nothing in this process catches."""
    excepthook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        excepthook(kind, error, trace)
        try:
            connection = Connection(Path(os.environ["MEMGATE_RUN_DIR"]))
        except (OSError, KeyError):  # memgate has gone
            return
        failure = _describe(kind, error, trace)
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        connection.tell(kind="failed", pid=os.getpid(), failure=failure, at=at)

    sys.excepthook = tell


def _describe(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> dict[str, Any]:
    """Return what the job raised, and where: its last frames, with their source lines."""
    frames = traceback.extract_tb(trace)[-_NUM_FRAMES:]
    return {
        "kind": kind.__name__,
        "module": getattr(error, "name", None) if isinstance(error, ImportError) else None,
        "message": str(error),
        "last_line": traceback.format_exception_only(kind, error)[-1].strip(),
        "frames": [[frame.filename, frame.lineno, frame.name, frame.line] for frame in frames],
    }
