"""Who works on a runtime, and who uses it: two locks beside its home.

One process at a time installs or removes it. Any number use it, and while they do it is neither
removed nor are its libraries replaced; the real cuDNN and stand-ins are added meanwhile.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memgate.errors import OperatorError
from memgate_worker.runtimes.runtime import Runtime

#: what the kernel says of all locks
_LOCKS = Path("/proc/locks")


@contextmanager
def alone(runtime: Runtime, report: Callable[[str], None]) -> Iterator[int]:
    """Let one process at a time work on a runtime; others wait. Yields the lock's descriptor.

    A program that inherits the descriptor holds the lock until it ends, whatever becomes of us.
    """
    runtime.home.parent.mkdir(parents=True, exist_ok=True)
    with (runtime.home.parent / f".{runtime.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that installs or removes it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


class Use:
    """Says that a runtime is in use, until it is closed or this process ends."""

    def __init__(self, runtime: Runtime) -> None:
        self._descriptor = _open(runtime)
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Say that it is no longer in use."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def using(runtime: Runtime) -> Iterator[None]:
    """Say that a runtime is in use meanwhile."""
    use = Use(runtime)
    try:
        yield
    finally:
        use.close()


@contextmanager
def unused(runtime: Runtime, what: str) -> Iterator[None]:
    """Make sure that nobody uses a runtime meanwhile; who wants to waits.

    Raises:
        OperatorError: if it is in use; ``what`` says what was not done.
    """
    descriptor = _open(runtime)
    if descriptor is None:  # the folder cannot be written to: what follows says so
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperatorError(
                f"runtime {runtime.name!r} {what}: it is in use{_by_whom(descriptor)}; stop what"
                " uses it (memgate up, a worker, an estimate), then try again"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _open(runtime: Runtime) -> int | None:
    """Open the lock; None where there is none and none can be made, as in a read-only image."""
    path = runtime.home.parent / f".{runtime.name}.users"
    for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):
        with suppress(OSError):
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
    return None


def _by_whom(descriptor: int) -> str:
    """Name the processes that hold a lock, as far as the kernel says."""
    inode = f":{os.fstat(descriptor).st_ino}"
    try:
        rows = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return ""
    found = sorted({row[4] for row in rows if row[1] == "FLOCK" and row[5].endswith(inode)})
    return f" by process {', '.join(found)}" if found else ""
