"""Waits for a command: until all of it was seen, or enough, or its time is up.

A job is ended as soon as enough was seen of it. For a script that is the end of one command, and
the script goes on with the next: that is followed for as long as it starts processes, since the
next one may train, too. A launcher that only waits for what was ended starts nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from memgate.errors import HostMemoryError, TimeLimitError
from memgate_worker.family import takes_more_than
from memgate_worker.recorder.listening import Listening, is_running
from memgate_worker.recorder.question import CommandQuestion

#: how often limits are checked
_LOOK_SECONDS = 0.1

#: how long processes may take to write their recordings, once one of them has had enough
_WRITING_SECONDS = 20.0

#: a command that starts nothing for so long after a job of it was ended only waits for that job
_IDLE_SECONDS = 2.0

#: how long the next command of a script may take until it imports torch or uses a GPU
_LATER_SECONDS = 60.0

#: programs that run one command after the other, and end with the status of one that fails
_RUNNERS = {"bash", "busybox", "dash", "fish", "ksh", "make", "mksh", "sh", "zsh"}

#: of a command that was not seen, so much is quoted
_NUM_CHARACTERS = 80


def wait_for(
    process: subprocess.Popen[bytes], listening: Listening, question: CommandQuestion
) -> str:
    """Return when the command has ended, or all that uses CUDA in it has recorded enough.

    Returns:
        What is known to come later and was not seen; empty if nothing is.

    Raises:
        HostMemoryError: if it takes more memory of this machine than it may.
        TimeLimitError: if nothing was recorded in time.
    """
    waiting = _Waiting(process, listening, question)
    while process.poll() is None:
        with listening.changed:
            listening.changed.wait(_LOOK_SECONDS)
        if listening.crash is not None:
            raise listening.crash
        if (unseen := waiting.look(time.monotonic())) is not None:
            return unseen
    return waiting.what_its_end_hides()


class _Waiting:
    """What was heard when; the rest of it is up to ``wait_for``."""

    def __init__(
        self, process: subprocess.Popen[bytes], listening: Listening, question: CommandQuestion
    ) -> None:
        self._process = process
        self._listening = listening
        self._heard = listening.heard
        self._question = question
        self._deadline = time.monotonic() + question.limits.seconds
        self._is_late = False
        self._num_stops = 0
        self._stopped_at = 0.0
        self._num_signs = 0
        self._sign_at = 0.0
        self._idle_since: float | None = None
        self._program = ""

    def look(self, now: float) -> str | None:
        """Return None to go on, otherwise what was not seen; called while the command runs."""
        with suppress(OSError):  # a shell may become the last command that it runs
            self._program = os.readlink(f"/proc/{self._process.pid}/exe")
        self._note_signs(now)
        if now > self._deadline and not self._is_late:
            self._end_what_uses_a_gpu(now)
        self._check_memory()
        if (self._heard.stops or self._is_late) and not self._is_writing(now):
            return self._what_comes_later(now)
        return None

    def what_its_end_hides(self) -> str:
        """Return what a script may have left out, that ended after a job of it was ended."""
        status = self._process.returncode
        is_runner = Path(self._program).name in _RUNNERS
        if not self._heard.stops or not status or not is_runner:
            return ""
        return f"the script ended with exit status {status}"

    def _note_signs(self, now: float) -> None:
        if len(self._heard.stops) > self._num_stops:
            self._num_stops, self._stopped_at = len(self._heard.stops), now
        if self._heard.num_signs > self._num_signs:
            self._num_signs, self._sign_at = self._heard.num_signs, now

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
        if missing & heard.later_devices and not self._is_late:
            return True
        return bool(missing) and now - self._stopped_at < _WRITING_SECONDS

    def _what_comes_later(self, now: float) -> str | None:
        later = next(self._find_later(), None)
        if later is None:
            self._idle_since = self._idle_since or now
            return "" if now - self._idle_since > _IDLE_SECONDS else None
        self._idle_since = None
        if self._is_late:
            return f"the script goes on with {later}, and the time is up (--timeout)"
        if now - self._sign_at > _LATER_SECONDS:
            return f"the script goes on with {later}, which has used no GPU so far"
        return None

    def _find_later(self) -> Iterator[str]:
        """Yield the commands that were started after a process was stopped."""
        stopped_at = self._heard.stopped_at or 0.0
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error, OSError):
                    if _started_at(one.pid) >= stopped_at and is_running(one.pid):
                        yield shlex.join(one.cmdline())[:_NUM_CHARACTERS]

    def _check_memory(self) -> None:
        if takes_more_than(self._question.limits.memory_bytes, self._process.pid):
            allowed = self._question.limits.allowed_memory
            raise HostMemoryError(f"the command took more memory of this machine than {allowed}")


def _started_at(pid: int) -> float:
    """Return when a process was started, in seconds since this machine was; never too early."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")
