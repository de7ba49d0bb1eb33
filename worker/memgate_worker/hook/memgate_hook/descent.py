"""Where this process comes from: its parent, and whether a shell started it in the background.

A shell without job control (that of every script) has what it starts with ``&`` ignore SIGINT and
SIGQUIT, and read from ``/dev/null``, as POSIX says. Of a function or another part of the script,
bash does not keep to the first: a fork of the shell that reads from ``/dev/null``, while the shell
itself does not, is in the background, too. Every bash ignores SIGQUIT, which alone says nothing.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_OF_THE_BACKGROUND = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGQUIT - 1)

#: where Linux tells of processes
_PROC = Path("/proc")


def find_background(pid: int, proc: Path = _PROC) -> int:
    """Return the process that a shell started in the background, this one or one above it.

    0: there is none. Commands with the same one run one after the other, like any others. The
    command that memgate has started leads its session; above it is nothing of the job.
    """
    found = pid if _ignores_signals(proc / str(pid)) else 0
    while pid and not _leads_its_session(proc / str(pid)):
        parent = _parent_of(proc / str(pid))
        place, above = proc / str(pid), proc / str(parent)
        if _ignores_signals(place) or _is_fork_without_input(place, above):
            found = pid
        pid = parent
    return found


def find_children(pid: int, proc: Path = _PROC) -> list[int]:
    """Return the processes that this one has started and that are still there."""
    processes = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return sorted(one for one in processes if _parent_of(proc / str(one)) == pid)


def _ignores_signals(place: Path) -> bool:
    ignored = int(_read_field(place, "SigIgn:") or "0", 16)
    return ignored & _OF_THE_BACKGROUND == _OF_THE_BACKGROUND


def _is_fork_without_input(place: Path, above: Path) -> bool:
    try:
        is_fork = (place / "cmdline").read_bytes() == (above / "cmdline").read_bytes()
        takes_nothing, above_too = (
            os.readlink(one / "fd" / "0") == os.devnull for one in (place, above)
        )
    except OSError:  # one has ended, or has closed its input
        return False
    return is_fork and takes_nothing and not above_too


def _leads_its_session(place: Path) -> bool:
    return _read_field(place, "NSsid:") == place.name


def _parent_of(place: Path) -> int:
    return int(_read_field(place, "PPid:") or "0")


def _read_field(place: Path, name: str) -> str:
    try:
        lines = (place / "status").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return ""
    return next((line.split()[1] for line in lines if line.startswith(name)), "")


#: of this process; found before the job changes what it ignores
BACKGROUND = find_background(os.getpid())
