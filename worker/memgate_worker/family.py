"""The memory of a process and of all that it started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

#: to look into a process waits for it, and thousands that multiply make one wait for ever
_MAX_LOOKED_INTO = 64

#: how long processes may take to be gone that were killed
_ENDING_SECONDS = 10.0


def takes_more_than(limit_bytes: int, pid: int, first: int | None = None) -> bool:
    """Say whether a process, with those that it started, takes more memory than it may.

    A page that several of them share, as workers of a data loader share what was loaded before
    them, counts once, unless there are very many. To know that takes a while, so it is looked at
    only if it matters. What has lost its parent is a child of ``first``, the first process in the
    namespaces of a job.
    """
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        if first is not None and _has_children(first):
            family += psutil.Process(first).children(recursive=True)
        if sum(member.memory_info().rss for member in family) <= limit_bytes:
            return False
        if len(family) > _MAX_LOOKED_INTO:
            return True
        return sum(member.memory_full_info().pss for member in family) > limit_bytes
    except psutil.NoSuchProcess:  # one of them ended while we looked
        return False


def _has_children(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    except FileNotFoundError:  # of a kernel that does not say it, or it has ended
        return True


def end_children() -> None:
    """End all that this process has started, and what they have, however fast they multiply."""
    seen: set[psutil.Process] = set()
    deadline = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < deadline:
        there = set(psutil.Process().children(recursive=True))
        for process in there - seen:  # what is stopped starts no more
            _signal(process, signal.SIGSTOP)
        if there <= seen:
            break
        seen = there
    for process in seen:
        _signal(process, signal.SIGKILL)
    _collect(deadline)


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)


def _collect(deadline: float) -> None:
    """Wait for children until there are none."""
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
