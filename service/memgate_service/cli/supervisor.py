"""Keeps a few programs running: starts them, restarts them when they die, ends them together.

For ``memgate up``. On a cluster, an init system or Kubernetes does this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from memgate_worker.lifeline import die_with_parent

#: a program that keeps dying is restarted after a while, not in a tight loop
_FIRST_DELAY_SECONDS = 0.2
_MAX_DELAY_SECONDS = 5.0
_STABLE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Program:
    """A program that should run."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: a program that needs others has a higher level than they do, and is ended before them
    level: int = 0
    #: how long it may take to end
    grace_seconds: float = 10.0
    #: rights that files which it makes do not get; None: as for others
    umask: int | None = None
    #: open files that it inherits, by number
    inherited: Sequence[int] = ()
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    delay_seconds: float = _FIRST_DELAY_SECONDS
    num_deaths: int = 0


def safe_command(module: str) -> list[str]:
    """Return the command that runs a module of ours; nothing in the working directory is imported.

    With a plain ``-m`` Python would look there first and find a user's ``queue.py``.
    """
    return [sys.executable, "-P", "-m", module]


def _private(path: Path) -> BinaryIO:
    """Open a log to write at its end; it has what people asked, so others may not read it."""
    log = path.open("ab")
    path.chmod(0o600)
    return log


class Supervisor:
    """Runs programs until it is told to stop; those of the highest level end first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._programs: list[Program] = []

    def start(self, program: Program) -> None:
        """Start a program, and look after it from now on."""
        self._programs.append(program)
        self._start(program)

    def _start(self, program: Program) -> None:
        with _private(self._logs / f"{program.name}.log") as log:
            program.process = subprocess.Popen(
                program.command,
                env=os.environ | program.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=program.inherited,
                # in its own process group: we handle Ctrl-C, and end the programs in order
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
                umask=-1 if program.umask is None else program.umask,
            )
        program.started_at = time.monotonic()

    def look(self) -> None:
        """Start again what died."""
        now = time.monotonic()
        for program in self._programs:
            assert program.process is not None
            if program.process.poll() is None:
                if now - program.started_at > _STABLE_SECONDS:
                    program.delay_seconds = _FIRST_DELAY_SECONDS
            elif now - program.started_at >= program.delay_seconds:
                program.num_deaths += 1
                program.delay_seconds = min(2 * program.delay_seconds, _MAX_DELAY_SECONDS)
                self._start(program)

    def run(self, is_over: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
        """Look after the programs until told to stop; ``meanwhile`` is called again and again."""
        while not is_over():
            self.look()
            meanwhile()
            time.sleep(0.1)

    def deaths(self, name: str) -> int:
        """Return how often a program died."""
        return sum(program.num_deaths for program in self._programs if program.name == name)

    def stop(self) -> None:
        """End all programs, level by level; those of a level together."""
        for level in sorted({program.level for program in self._programs}, reverse=True):
            _end([program for program in self._programs if program.level == level])

    def last_words(self, name: str) -> str:
        """Return the last line of a program's log."""
        path = self._logs / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
        return lines[-1] if lines else "it said nothing"


def _end(programs: Sequence[Program]) -> None:
    start = time.monotonic()
    running = [(program, process) for program in programs if (process := program.process)]
    for _, process in running:
        process.terminate()  # does nothing if it has ended
    for program, process in running:
        try:
            process.wait(max(0.0, start + program.grace_seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # each has a group of its own
            process.wait()


def _die_with(parent: int) -> Callable[[], None]:
    def tie() -> None:
        die_with_parent()
        if os.getppid() != parent:  # it was gone before we were tied to it
            os._exit(1)

    return tie
