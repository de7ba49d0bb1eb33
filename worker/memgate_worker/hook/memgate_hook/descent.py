"""Where this process comes from: its parent, and whether a shell started it in the background.

A shell without job control (that of every script) has the commands that it starts with ``&`` ignore
SIGINT and SIGQUIT, as POSIX says. If that is a part of the script, bash has only its own process
ignore them, and not what that starts; and while it waits for that, it ignores SIGQUIT alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_OF_THE_BACKGROUND = 1 << (signal.SIGQUIT - 1)

#: where Linux tells of processes
_PROC = Path("/proc")


def find_background(pid: int, proc: Path = _PROC) -> int:
    """Return the process that a shell started in the background, this one or one above it.

    0: there is none. Commands with the same one run one after the other, like any others. The
    command that memgate has started leads its session; above it is nothing of the job.
    """
    found = pid if _is_in_background(proc / str(pid)) else 0
    while pid and not _leads_its_session(proc / str(pid)):
        if _is_in_background(proc / str(pid)):
            found = pid
        pid = _parent_of(proc / str(pid))
    return found


def find_children(pid: int, proc: Path = _PROC) -> list[int]:
    """Return the processes that this one has started and that are still there."""
    processes = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return sorted(one for one in processes if _parent_of(proc / str(one)) == pid)


def _is_in_background(place: Path) -> bool:
    ignored = int(_read_field(place, "SigIgn:") or "0", 16)
    return bool(ignored & _OF_THE_BACKGROUND)


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
