"""A separate process for each job, with limits on time and memory, in a sandbox.

It is forked, so it starts with everything imported. When it ends, whatever it started ends too. No
torch here.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from memgate.errors import HostMemoryError, LimitExceededError, TimeLimitError
from memgate.units import format_size
from memgate_worker.family import end_children, takes_more_than
from memgate_worker.limits import RunLimits
from memgate_worker.sandbox.confine import Jobs

#: how often limits are checked; what takes longer to look at, less often
_LOOK_SECONDS, _FILES_SECONDS = 0.1, 1.0


class UnwantedError(Exception):
    """Nobody waits for the child any more; it was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Where a job runs, and what it has."""

    jobs: Jobs
    #: a directory that it may write to
    folder: Path
    #: open files that are its own
    keeps: tuple[int, ...] = ()


def run_in_child(
    work: Callable[[], None],
    limits: RunLimits,
    place: JobPlace,
    *,
    told: int,
    on_told: Callable[[bytes], None],
    unwanted: int,
) -> int:
    """Fork, do the work there, and wait for it.

    Args:
        work: done in the child, which ends when it is done: with status 1 if it raises, or with the
            status that it exits with.
        limits: what the child, and what it starts, may take.
        place: the sandbox of the child.
        told: end of a pipe; ``on_told`` is given what the child writes to it.
        on_told: called with it.
        unwanted: number of a file; the child is ended once there is something to read in it.

    Returns:
        The exit status; negative if a signal ended the child.

    Raises:
        LimitExceededError: if a limit was exceeded; the child was ended.
        UnwantedError: if nobody waits for it any more.
        OSError: if there is no sandbox for it.
    """
    child = place.jobs.fork(partial(_be_the_child, work), place.folder, place.keeps)
    watched = os.pidfd_open(child)
    try:
        return _wait(_Job(child, watched, limits, place), told, on_told, unwanted)
    finally:
        os.close(watched)
        _end_group(child)
        if place.jobs.has_family_here:
            end_children()
        place.jobs.end()


def _be_the_child(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Job:
    """A child that runs."""

    def __init__(self, child: int, watched: int, limits: RunLimits, place: JobPlace) -> None:
        self.watched = watched
        self._child = child
        self._limits = limits
        self._place = place
        self._deadline = time.monotonic() + limits.seconds
        self._files_seen_at = time.monotonic()

    def wait(self) -> int:
        """Return how it has ended."""
        _, status = os.waitpid(self._child, 0)
        return os.waitstatus_to_exitcode(status)

    def check(self) -> None:
        """Raise ``LimitExceededError`` if it takes more than it may."""
        now = time.monotonic()
        if now > self._deadline:
            raise TimeLimitError(
                f"the job's run took longer than {self._limits.seconds:g} s, which is memgate's"
                " limit and not the job's fault; allow more with --timeout SECONDS (of workers:"
                " MEMGATE_JOB_TIMEOUT_SECONDS)"
            )
        allowed = self._limits.memory_bytes
        if takes_more_than(allowed, self._child, self._place.jobs.first):
            raise HostMemoryError(
                f"the job's run took more memory of this machine than {self._limits.allowed_memory}"
            )
        if now - self._files_seen_at >= _FILES_SECONDS:
            self._files_seen_at = now
            self._check_files()

    def _check_files(self) -> None:
        """Without a mount of its own, nothing but this bounds what it writes."""
        cell = self._place.jobs.cell
        if cell is None or not self._place.jobs.has_family_here:
            return
        if _size_of(self._place.folder) > cell.scratch_bytes:
            raise LimitExceededError(
                f"the job's run wrote more than {format_size(cell.scratch_bytes)} of files,"
                " which is memgate's limit and not the job's fault"
            )

    def end(self) -> None:
        """End it."""
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


def _wait(job: _Job, told: int, on_told: Callable[[bytes], None], unwanted: int) -> int:
    while True:
        ready, _, _ = select.select([job.watched, told, unwanted], [], [], _LOOK_SECONDS)
        if told in ready:
            on_told(os.read(told, 4096))
        if job.watched in ready:
            return job.wait()
        try:
            if unwanted in ready:
                raise UnwantedError
            job.check()
        except (LimitExceededError, UnwantedError):
            job.end()
            raise


def _size_of(folder: Path) -> int:
    return sum(_disk_bytes(Path(at, name)) for at, _, names in os.walk(folder) for name in names)


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:  # it is gone
        return 0


def _end_group(child: int) -> None:
    with suppress(ProcessLookupError):  # it started no other process, or they have ended
        os.killpg(child, signal.SIGKILL)
