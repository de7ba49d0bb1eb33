"""A cgroup for the jobs of one process, where the kernel and the operator let us make one.

It bounds memory and processes of a job as a whole, at once, where a look now and then (``family``)
comes late. Version 1 needs root; version 2 a cgroup that was delegated to us, as systemd does with
``Delegate=yes``.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "memgate-jobs-"
#: where processes of a delegated cgroup go: with version 2, one that has cgroups has no processes
_OWN = "memgate-own"
_CONTROLLERS = ("memory", "pids")
#: systemd marks what it has delegated
_DELEGATED = ("user.delegate", "trusted.delegate")


class JobCgroup:
    """Bounds what is in it; jobs join by files that are open, and see no cgroups."""

    def __init__(self, folders: tuple[Path, ...], max_processes: int) -> None:
        self._folders = folders
        for name in ("pids.max",):
            self._write(name, max_processes)
        self._write("memory.swap.max", 0)
        #: to be passed on
        self.joined_by = tuple(
            os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in folders
        )
        self._num_killed = self._count_killed()

    def limit_memory(self, num_bytes: int) -> None:
        """Bound the memory of the next job."""
        self._num_killed = self._count_killed()
        for name in ("memory.max", "memory.limit_in_bytes"):
            self._write(name, num_bytes)

    @property
    def has_killed(self) -> bool:
        """The kernel has ended a process of the job since, for want of memory."""
        return self._count_killed() > self._num_killed

    def close(self) -> None:
        """Remove it; nothing is in it any more."""
        for number in self.joined_by:
            os.close(number)
        for folder in self._folders:
            with suppress(OSError):  # something ends only now: the next worker removes it
                folder.rmdir()

    def _write(self, name: str, value: int) -> None:
        for folder in self._folders:
            with suppress(OSError):  # a cgroup of another controller has no such file
                if (folder / name).exists():
                    (folder / name).write_text(str(value))

    def _count_killed(self) -> int:
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    found = re.search(r"^oom_kill (\d+)$", (folder / name).read_text(), re.M)
                    if found:
                        return int(found[1])
        return 0


def make_cgroup(max_processes: int) -> JobCgroup | None:
    """Return a cgroup for jobs; None if none can be made here."""
    with suppress(OSError, ValueError):
        parents = tuple(_find_parents())
        folders = []
        for parent in parents:
            _remove_old(parent)
            folder = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir()
            folders.append(folder)
        if folders:
            return JobCgroup(tuple(folders), max_processes)
    return None


def _find_parents() -> Iterator[Path]:
    """Yield the directories in which cgroups with our controllers can be made."""
    with open("/proc/self/cgroup") as lines:
        ours = [line.rstrip("\n").split(":", 2) for line in lines]
    for _, controllers, path in ours:
        names = set(controllers.split(",")) & set(_CONTROLLERS)
        for name in sorted(names):
            folder = _find_mounted("cgroup", name, path)
            if folder is not None and os.access(folder, os.W_OK):
                yield folder
        if not controllers and (folder := _find_mounted("cgroup2", "", path)) is not None:
            yield from _prepare(folder)


def _find_mounted(kind: str, option: str, path: str) -> Path | None:
    """Return where a cgroup is seen."""
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            root, point = before.split()[3:5]
            found, _, options = after.split(None, 2)
            if found == kind and (not option or option in options.strip().split(",")):
                inside = os.path.relpath(path, root)
                return None if inside.startswith("..") else Path(point) / inside
    return None


def _prepare(folder: Path) -> Iterator[Path]:
    """Yield a cgroup of version 2, if it can have others with limits."""
    if folder.name == _OWN:
        folder = folder.parent
    there = (folder / "cgroup.controllers").read_text().split()
    if not set(_CONTROLLERS) <= set(there) or not os.access(folder, os.W_OK):
        return
    switched = folder / "cgroup.subtree_control"
    if not set(_CONTROLLERS) <= set(switched.read_text().split()):
        if not _is_delegated(folder):
            return
        (folder / _OWN).mkdir(exist_ok=True)
        for process in (folder / "cgroup.procs").read_text().split():
            (folder / _OWN / "cgroup.procs").write_text(process)
        switched.write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    yield folder


def _is_delegated(folder: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _remove_old(parent: Path) -> None:
    """Remove what processes have left that were killed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        process = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not os.path.exists(f"/proc/{process}"):
            with suppress(OSError):
                folder.rmdir()
