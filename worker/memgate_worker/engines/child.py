"""A separate process for each job, with limits on time and memory.

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

from memgate.errors import HostMemoryError, LimitExceededError, TimeLimitError
from memgate_worker.family import takes_more_than
from memgate_worker.lifeline import die_with_parent
from memgate_worker.limits import RunLimits

#: how often limits are checked
_LOOK_SECONDS = 0.1


class UnwantedError(Exception):
    """Nobody waits for the child any more; it was ended."""


def run_in_child(
    work: Callable[[], None],
    limits: RunLimits,
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
        told: end of a pipe; ``on_told`` is given what the child writes to it.
        on_told: called with it.
        unwanted: number of a file; the child is ended once there is something to read in it.

    Returns:
        The exit status; negative if a signal ended the child.

    Raises:
        LimitExceededError: if a limit was exceeded; the child was ended.
        UnwantedError: if nobody waits for it any more.
    """
    child = os.fork()
    if child == 0:
        _be_the_child(work)
    watched = os.pidfd_open(child)
    try:
        return _wait(child, watched, limits, told, on_told, unwanted)
    finally:
        os.close(watched)
        _end_group(child)


def _be_the_child(work: Callable[[], None]) -> None:
    code = 1
    try:
        die_with_parent()
        os.setsid()  # so that what it starts can be ended with it
        work()
        code = 0
    except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(
    child: int,
    watched: int,
    limits: RunLimits,
    told: int,
    on_told: Callable[[bytes], None],
    unwanted: int,
) -> int:
    deadline = time.monotonic() + limits.seconds
    while True:
        ready, _, _ = select.select([watched, told, unwanted], [], [], _LOOK_SECONDS)
        if told in ready:
            on_told(os.read(told, 4096))
        if watched in ready:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status)
        try:
            if unwanted in ready:
                raise UnwantedError
            _check(child, limits, deadline)
        except (LimitExceededError, UnwantedError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise


def _check(child: int, limits: RunLimits, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeLimitError(
            f"the job's run took longer than {limits.seconds:g} s, which is memgate's limit and not"
            " the job's fault; allow more with --timeout SECONDS (of workers:"
            " MEMGATE_JOB_TIMEOUT_SECONDS)"
        )
    if takes_more_than(limits.memory_bytes, child):
        raise HostMemoryError(
            f"the job's run took more memory of this machine than {limits.allowed_memory}"
        )


def _end_group(child: int) -> None:
    with suppress(ProcessLookupError):  # it started no other process, or they have ended
        os.killpg(child, signal.SIGKILL)
