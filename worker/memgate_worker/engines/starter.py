"""Starts processes from a thread that lives as long as this process.

A host asks Linux to be killed when its parent dies (``lifeline``), and Linux regards the thread
that forked as the parent. A host that a short-lived thread started would die with that thread.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

_Start = Callable[[], subprocess.Popen[bytes]]
_Wanted = tuple[_Start, Future[subprocess.Popen[bytes]]]


class _Starter:
    """A daemon thread that starts the processes it is given."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[_Wanted] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, start: _Start) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="starter", daemon=True)
                self._thread.start()
        started: Future[subprocess.Popen[bytes]] = Future()
        self._wanted.put((start, started))
        return started.result()

    def _serve(self) -> None:
        while True:
            start, started = self._wanted.get()
            try:
                started.set_result(start())
            except BaseException as error:  # raised where the process is wanted
                started.set_exception(error)


_starter = _Starter()


def _forget() -> None:
    """A fork has only the thread that forked."""
    global _starter
    _starter = _Starter()


os.register_at_fork(after_in_child=_forget)


def start_process(start: _Start) -> subprocess.Popen[bytes]:
    """Start a process that may outlive the calling thread, but not this process."""
    if threading.current_thread() is threading.main_thread():
        return start()
    return _starter.start(start)
