"""Makes namespaces for one job after the other: a small program beside a process that is kept.

``python -I -S spaces.py SOCKET PLAN``. The process that is kept is large, and to fork it takes tens
of milliseconds; so it forks once for a job, into namespaces that were made here while it waited.

For each job there are two processes of ours: one that leaves the namespaces, and the first process
in them, which shows the job its own processes and an empty directory in memory, and waits. The
kernel ends everything in the namespaces with it: before those of the next job are made, nothing of
the last one is left. Standard library only.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":  # by path, and the interpreter knows no packages
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from memgate_worker.sandbox import kernel, view
from memgate_worker.sandbox.cell import Cell

_PROC = view.PRIVATE | kernel.MS_NOEXEC
_FAILED, _READY = 1, "ready"


class Spaces:
    """Our end of it, in the process that is kept."""

    def __init__(self, cell: Cell) -> None:
        """Start the program; it makes the namespaces of the first job at once."""
        self._cell = cell
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            program = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), cell.to_json()]
            self._process = os.posix_spawn(sys.executable, program, {})
        self._door = ours
        self._number = 0
        self._order()

    @property
    def number(self) -> int:
        """Of the job that is next, or runs."""
        return self._number

    def take(self) -> int:
        """Return the first process of the namespaces of the next job, once they are there.

        Raises:
            OSError: if they cannot be made.
        """
        said = self._door.recv(4096).decode()
        if not said.isdigit():
            self._door.close()
            raise OSError(1, said or "the program that makes namespaces was ended")
        return int(said)

    def leave(self) -> None:
        """End everything in the namespaces that were taken; those of the next job are made."""
        self._number += 1
        self._order()

    def _order(self) -> None:
        self._door.send(str(self._cell.uid_of(self._number) or 0).encode())


def serve(door: socket.socket, cell: Cell) -> None:
    """Make namespaces for each user that is named; those before end first."""
    keeper = first = 0
    with suppress(ConnectionError):  # whoever asked has ended, and may have said why
        while uid := door.recv(64).decode():
            if keeper:
                os.kill(first, signal.SIGKILL)
                os.waitpid(keeper, 0)  # which ends when all in the namespaces are gone
            keeper, first, problem = _make(cell, int(uid))
            door.send(problem.encode() if problem else str(first).encode())


def _make(cell: Cell, uid: int) -> tuple[int, int, str]:
    """Return the keeper, the first process, and why there are no namespaces."""
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(reading)
        _keep(cell, uid, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        first, problem = lines.readline(), lines.readline()
    return keeper, int(first or 0), problem.strip() or ("" if first else "no process")


def _keep(cell: Cell, uid: int, writing: int) -> NoReturn:
    kernel.die_with_parent(signal.SIGKILL)
    try:
        kernel.unshare(kernel.NEWPID | kernel.NEWNS | kernel.NEWIPC)
        ready, is_ready = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(ready)
            _be_first(cell, uid, is_ready)
        os.close(is_ready)
        problem = os.read(ready, 4096).decode().removeprefix(_READY)
        os.write(writing, f"{first}\n{problem}\n".encode())
    except OSError as error:
        os.write(writing, f"0\n{error.strerror}\n".encode())
        os._exit(_FAILED)
    os.close(writing)
    os.waitpid(first, 0)
    os._exit(0)


def _be_first(cell: Cell, uid: int, is_ready: int) -> NoReturn:
    """Furnish the namespaces, and collect whatever loses its parent in them."""
    kernel.die_with_parent(signal.SIGKILL)
    try:
        _furnish(cell, uid)
        os.write(is_ready, _READY.encode())  # fails if our parent was gone before we asked
    except OSError as error:
        with suppress(OSError):
            os.write(is_ready, (error.strerror or "?").encode())
        os._exit(_FAILED)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while True:
        signal.pause()


def _furnish(cell: Cell, uid: int) -> None:
    kernel.mount("proc", "/proc", "proc", _PROC)
    # the host name and the like are shared with other jobs
    kernel.mount("/proc/sys", "/proc/sys", "", kernel.MS_BIND)
    kernel.limit_mount("/proc/sys", kernel.ATTR_RDONLY, recursively=False)
    # libraries of an operator who has them there are seen as before
    covered = [path for path in cell.readable if path.startswith("/tmp/")]
    sources = {path: os.open(path, os.O_PATH) for path in covered}
    for path, mode in zip(view.SCRATCH, ("700", "1777"), strict=True):
        options = f"mode={mode},size={cell.scratch_bytes},nr_inodes=1m,uid={uid},gid={uid}"
        kernel.mount("tmpfs", path, "tmpfs", view.PRIVATE, options)
    for path, source in sources.items():
        view.bind(source, path)
        os.close(source)
    if sources:  # what is seen of the directory is for its user alone
        os.chown("/tmp", uid, uid)


def main() -> None:
    """Serve the socket of the command line."""
    kernel.die_with_parent(signal.SIGKILL)
    number, plan = sys.argv[1:]
    with socket.socket(fileno=int(number)) as door:
        serve(door, Cell.from_json(plan))


if __name__ == "__main__":
    main()
