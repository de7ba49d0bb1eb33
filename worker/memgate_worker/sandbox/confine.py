"""A process for one job, forked by one that is kept for many, and kept apart from both.

With namespaces, they are made beforehand (``spaces.py``), and the job joins them: it sees its own
processes alone, and files that it writes are in memory and end with it. Without, it is kept from
files by Landlock and from calls by a filter, and whoever forked it ends its family.

Standard library only.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from memgate_worker.sandbox import filters, kernel, landlock, view
from memgate_worker.sandbox.cell import Cell
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.spaces import Spaces

#: how a process ends that could not be kept apart
FAILED_STATUS = 88

#: where jobs with namespaces of their own write
_PRIVATE_DIR = Path("/tmp")

_NAMESPACES = {"ipc": kernel.NEWIPC, "mnt": kernel.NEWNS}


class Jobs:
    """Forks processes for jobs, each kept apart from the others and from this process."""

    def __init__(self, cell: Cell | None) -> None:
        """Prepare for the first job.

        Args:
            cell: how far apart; None: not at all.
        """
        self._cell = cell
        self._spaces = Spaces(cell) if cell is not None and cell.level.is_apart else None
        self._number = 0
        #: the first process in the namespaces of the job that runs, if it has its own
        self.first: int | None = None
        if cell is not None and self._spaces is None:
            kernel.adopt_orphans()

    @property
    def cell(self) -> Cell | None:
        """How far apart."""
        return self._cell

    @property
    def has_family_here(self) -> bool:
        """What a job has started becomes ours, and must be ended by us."""
        return self._cell is not None and self._spaces is None

    def private_dir(self, folder: Path) -> Path:
        """Return where a job may write, to which ``folder`` is given."""
        return folder if self._spaces is None else _PRIVATE_DIR

    def fork(
        self, work: Callable[[], NoReturn], folder: Path | None = None, keeps: Iterable[int] = ()
    ) -> int:
        """Fork, and do the work there; return the process.

        Args:
            work: it ends its process.
            folder: an empty directory of ours that the job may write to, if it has no namespaces.
            keeps: numbers of open files, besides the first three, that the job has as well.

        Raises:
            OSError: if there are no namespaces for it.
        """
        keeps = tuple(keeps)
        if self._spaces is not None:
            self.first = self._spaces.take()
            _join_namespace(self.first, "pid", kernel.NEWPID)
        process = os.fork()
        if process:
            return process
        try:
            os.setsid()  # what it starts can be ended with it
            self._confine(folder, keeps)
        except OSError as error:
            _fail(error)
        work()

    def end(self) -> None:
        """End what is left of the job in its namespaces, soon; call it when its process is gone."""
        self._number += 1
        if self._spaces is not None and self.first is not None:
            self.first = None
            self._spaces.leave()

    def _confine(self, folder: Path | None, keeps: tuple[int, ...]) -> None:
        cell = self._cell
        if cell is None:
            if sys.platform == "linux":
                kernel.die_with_parent(signal.SIGKILL)
            return
        for number in cell.cgroups:
            os.write(number, b"0")
        uid = cell.uid_of(self._number if self._spaces is None else self._spaces.number)
        if self.first is None:
            _confine_by_landlock(cell, uid, folder, keeps)
            return
        for name, kind in _NAMESPACES.items():
            _join_namespace(self.first, name, kind)
        os.chdir("/")
        _hide_files(keeps)
        _limit(cell)
        _become(uid)
        filters.refuse_calls(has_network=True)
        _settle_in(_PRIVATE_DIR)


def _join_namespace(process: int, name: str, kind: int) -> None:
    number = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.check(kernel.libc.setns(number, kind), f"join {name}")
    finally:
        os.close(number)


def _confine_by_landlock(
    cell: Cell, uid: int | None, folder: Path | None, keeps: tuple[int, ...]
) -> None:
    """Keep a job apart without namespaces."""
    _hide_files(keeps)
    _limit(cell)
    places = [] if folder is None else [str(folder)]
    if uid is not None:
        for place in places:
            os.chown(place, uid, uid)
    # Landlock then says what may be read, whoever owns it
    has_list = cell.level is Level.LANDLOCK
    _become(uid, (kernel.DAC_READ_SEARCH,) if has_list and cell.needs_rights_to_read else ())
    if has_list:
        readable = (*view.SYSTEM, "/proc", *cell.readable)
        landlock.restrict(readable, (*view.DEVICES, *places))
    filters.refuse_calls(has_network=False)
    if folder is not None:
        _settle_in(folder)


def _become(uid: int | None, rights: tuple[int, ...] = ()) -> None:
    """Be another user, with few rights or none, who owns this process and ends with our parent."""
    kernel.bound_capabilities(rights)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.keep_capabilities(rights)
    kernel.be_dumpable()
    kernel.die_with_parent(signal.SIGKILL)  # a change of user would have undone it


def _settle_in(folder: Path) -> None:
    """Have what the job imports write where it may."""
    (folder / "home").mkdir()
    os.environ.update({"TMPDIR": str(folder), "HOME": str(folder / "home")})
    tempfile.tempdir = None  # it was looked for outside
    os.chdir(folder)


def _hide_files(keeps: tuple[int, ...]) -> None:
    """Have nothing open but what is the job's: numbers stay taken, as objects of ours have them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/thread-self/fd")):
        if number > 2 and number != nothing and number not in keeps:
            with suppress(OSError):  # the directory itself, which was open to be listed
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _limit(cell: Cell) -> None:
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, cell.scratch_bytes),
        (resource.RLIMIT_NPROC, _count_processes(cell) + cell.max_processes),
        (resource.RLIMIT_NOFILE, 65536),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, most = resource.getrlimit(what)
        lowest = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(what, (lowest, lowest))


def _count_processes(cell: Cell) -> int:
    """Count those that a limit on a user's processes would count: all of ours, without others."""
    if cell.level.is_apart or cell.first_uid is not None:
        return 0
    return sum(_num_threads(path, os.getuid()) for path in Path("/proc").glob("[0-9]*"))


def _num_threads(process: Path, uid: int) -> int:
    try:
        return len(os.listdir(process / "task")) if process.stat().st_uid == uid else 0
    except OSError:  # it has ended
        return 0


def _fail(error: OSError) -> NoReturn:
    print(f"memgate sandbox: {error.strerror or error}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(FAILED_STATUS)
