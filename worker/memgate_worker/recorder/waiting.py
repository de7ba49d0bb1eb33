"""Waits for a command: until all of it was seen, or enough, or its time is up.

A job is ended as soon as enough was seen of it. For a script that is the end of one command, and
the script goes on with the next, which may train, too. So it is followed to its end, and so is what
it leaves running in the background. A command that goes on for long and uses no GPU is given up,
which takes the plain admit away.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from memgate.errors import HostMemoryError, InputError, TimeLimitError, UnsupportedJobError
from memgate_worker.family import takes_more_than
from memgate_worker.recorder.listening import MISSING, Listening, is_running
from memgate_worker.recorder.question import CommandQuestion

#: how often limits are checked
_LOOK_SECONDS = 0.1

#: how long processes may take to write their recordings, once one of them has had enough
_WRITING_SECONDS = 20.0

#: how long a command may go on after a job of it was ended, until it imports torch or uses a GPU
_LATER_SECONDS = 60.0

#: how long other ranks may wait for the one that runs to be started
_MISSING_SECONDS = 60.0

#: of a command that was not seen, so much is quoted
_NUM_CHARACTERS = 80


def wait_for(
    process: subprocess.Popen[bytes],
    listening: Listening,
    question: CommandQuestion,
    find_others: Callable[[], Iterable[psutil.Process]],
) -> str:
    """Return when the command has ended, with all that it started, or goes on without a GPU.

    Args:
        process: the command.
        listening: hears its processes.
        question: the limits.
        find_others: finds processes that the command has left running.

    Returns:
        What is known to come later and was not seen; empty if nothing is.

    Raises:
        HostMemoryError: if it takes more memory of this machine than it may.
        TimeLimitError: if nothing was recorded in time.
    """
    waiting = _Waiting(process, listening, question, find_others)
    while (unseen := waiting.look(time.monotonic())) is None:
        with listening.changed:
            listening.changed.wait(_LOOK_SECONDS)
        if listening.crash is not None:
            raise listening.crash
    return unseen


class _Waiting:
    """What was heard when; the rest of it is up to ``wait_for``."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        listening: Listening,
        question: CommandQuestion,
        find_others: Callable[[], Iterable[psutil.Process]],
    ) -> None:
        self._process = process
        self._listening = listening
        self._heard = listening.heard
        self._question = question
        self._find_others = find_others
        self._deadline = time.monotonic() + question.limits.seconds
        self._is_late = False
        self._num_stops = 0
        self._stopped_at = 0.0
        self._num_signs = 0
        #: when something was last heard that may lead to the use of a GPU
        self._sign_at = 0.0
        self._has_ended = False
        #: how much was heard of, also of processes that wait, and when that was last more
        self._num_heard = 0
        self._heard_at = 0.0

    def look(self, now: float) -> str | None:
        """Return None to go on, otherwise what was not seen; nothing if all was."""
        if not self._has_ended and self._process.poll() is not None:
            self._has_ended, self._sign_at = True, now
        if self._heard.refusal:
            raise InputError(self._heard.refusal)
        self._note_signs(now)
        self._let_ranks_go(now)
        left = [*self._find_left()] if self._has_ended else []
        if self._has_ended and not left:
            return self._what_its_end_hides()
        if now - self._listening.building.seconds > self._deadline and not self._is_late:
            self._end_what_uses_a_gpu(now)
        self._check_memory()
        if self._has_ended or self._heard.stops or self._is_late:
            return None if self._is_writing(now) else self._what_comes_later(now, left)
        return None

    def _let_ranks_go(self, now: float) -> None:
        """Have other ranks end with the one that runs."""
        heard = self._heard
        if heard.ranks and not any(map(is_running, [*heard.ranks])):
            self._listening.let_go()
        elif heard.waiting and not heard.ranks and now - self._heard_at > _MISSING_SECONDS:
            raise UnsupportedJobError(
                f"rank {self._question.rank} of {heard.world.size if heard.world else 0} was not"
                f" started in {_MISSING_SECONDS:g} s, only {_name_ranks(heard.waiting.values())}:"
                " the command starts the processes of another node"
            )

    def _what_its_end_hides(self) -> str:
        """Return what a command may have left out, that ended after a job of it was ended."""
        status = self._process.returncode
        misses_ours = any(one.kind in MISSING for one in self._heard.failures.values())
        if not self._heard.stops or not status or misses_ours:
            return ""
        return f"the command ended with exit status {status}"

    def _note_signs(self, now: float) -> None:
        if len(self._heard.stops) > self._num_stops:
            self._num_stops, self._stopped_at, self._sign_at = len(self._heard.stops), now, now
        if self._heard.num_signs > self._num_signs:
            self._num_signs, self._sign_at = self._heard.num_signs, now
        if (count := len(self._heard.waiting) + self._num_signs) > self._num_heard:
            self._num_heard, self._heard_at = count, now

    def _end_what_uses_a_gpu(self, now: float) -> None:
        self._listening.say_that_it_is_enough()
        if not self._heard.devices:
            raise TimeLimitError(
                f"the command took longer than {self._question.limits.seconds:g} s before it used a"
                " GPU, which is memgate's limit and not the job's fault; allow more with"
                " --timeout SECONDS"
            )
        self._is_late, self._stopped_at = True, now

    def _is_writing(self, now: float) -> bool:
        """Tell whether a process that uses CUDA is still to be heard of."""
        heard = self._heard
        missing = {pid for pid in heard.devices - heard.recordings.keys() if is_running(pid)}
        may_take_its_time = heard.later_devices if heard.stops else heard.devices
        if missing & may_take_its_time and not self._is_late:
            return True
        return bool(missing) and now - self._stopped_at < _WRITING_SECONDS

    def _what_comes_later(self, now: float, left: Sequence[psutil.Process]) -> str | None:
        """Return what the command still does, if that goes on for too long."""
        since = self._stopped_at if self._is_late else self._sign_at
        if now - since <= (_WRITING_SECONDS if self._is_late else _LATER_SECONDS):
            return None
        why = "the time is up (--timeout)" if self._is_late else "it has used no GPU so far"
        later = next((_name(one) for one in (*left, *self._find_later())), "")
        if not later:
            return f"the command goes on without another process, and {why}"
        return f"the command goes on with {later}, and {why}"

    def _find_later(self) -> Iterator[psutil.Process]:
        """Yield what was started after a process was stopped."""
        stopped_at = self._heard.stopped_at or 0.0
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error, OSError):
                    if _started_at(one.pid) >= stopped_at and is_running(one.pid):
                        yield one

    def _find_left(self) -> Iterator[psutil.Process]:
        """Yield what goes on in the background; workers of a job that we ended do not."""
        heard = self._heard
        for one in self._find_others():
            is_helper = one.pid in heard.left_behind and one.pid not in heard.devices
            if one.pid not in heard.stops and not is_helper and is_running(one.pid):
                yield one

    def _check_memory(self) -> None:
        if takes_more_than(self._question.limits.memory_bytes, self._process.pid):
            allowed = self._question.limits.allowed_memory
            raise HostMemoryError(f"the command took more memory of this machine than {allowed}")


def _name_ranks(ranks: Iterable[int]) -> str:
    return f"ranks {', '.join(map(str, sorted(ranks)))}"


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return shlex.join(process.cmdline())[:_NUM_CHARACTERS]
    return "a process"


def _started_at(pid: int) -> float:
    """Return when a process was started, in seconds since this machine was; never too early."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")
