"""CommandQuestion -> what its processes recorded: starts the command, waits, and ends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from memgate.errors import InputError, OperatorError
from memgate_worker.engines.starter import start_process
from memgate_worker.guard.guard import RUN_DIR, Guard, Protection
from memgate_worker.recorder.environment import command_environment
from memgate_worker.recorder.guarding import guarded, read_reports
from memgate_worker.recorder.libraries import find_libraries
from memgate_worker.recorder.listening import Heard, Listening
from memgate_worker.recorder.programs import with_programs
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.terminal import silent_terminal
from memgate_worker.recorder.waiting import wait_for

#: how often what is printed is shown
_SHOWING_SECONDS = 0.1

#: how long processes may take to end that were killed
_ENDING_SECONDS = 5.0

#: what ranks leave for others in the run's folder (``memgate_hook.rank_gloo``)
_SENT = "objects-*.pickle"

#: of a command's output, so much of the end is kept for messages
_LAST_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a command's processes left behind."""

    heard: Heard
    #: the files' contents, by process id
    recordings: dict[int, bytes]
    #: of the command's first process
    pid: int
    #: exit status of the command; None if it was ended by us
    status: int | None
    #: the end of what it printed
    last_output: str
    #: what of it is known to come later, and was not seen; empty if nothing is
    unseen: str
    #: how long it ran, without what it waited for us
    seconds: float
    #: its changes of files were kept apart, so that it can be run again
    is_protected: bool
    #: what its rank has sent to others, by the names of files; see ``CommandQuestion.sent``
    sent: dict[str, bytes]


def run_command(
    question: CommandQuestion,
    *,
    output: BinaryIO | None = None,
    on_progress: Callable[[Heard], None] = lambda _: None,
) -> Recorded:
    """Run a command until its processes have recorded enough, or it ends.

    Args:
        question: the command.
        output: written to as the command prints.
        on_progress: told of steps and stages.

    Raises:
        InputError: if there is no such command.
        HostMemoryError: if it takes more memory of this machine than it may.
        TimeLimitError: if nothing was recorded in time.
    """
    _check_that_it_exists(question)
    with (
        _run_dir() as run_dir,
        tempfile.TemporaryFile() as said,
        guarded(question, run_dir) as guard,
        silent_terminal() as terminal,
        _ended_by_signals(),
    ):
        for name, content in question.sent.items():
            (run_dir / name).write_bytes(content)
        with Listening(run_dir, find_libraries, on_progress) as listening:
            start = time.monotonic()
            process = _start(question, guard, run_dir, terminal, said)
            try:
                with _shown(said, output):
                    unseen = wait_for(process, listening, question, lambda: _find_daemons(run_dir))
                status = process.poll()
                seconds = time.monotonic() - start - listening.building.seconds
            finally:
                _end(process, run_dir)
        if listening.crash is not None:  # after the command had ended
            raise listening.crash
        recordings = {
            pid: (run_dir / name).read_bytes() for pid, name in listening.heard.recordings.items()
        }
        read_reports(run_dir, listening.heard)
        return Recorded(
            heard=listening.heard,
            recordings=recordings,
            pid=process.pid,
            status=status,
            last_output=_read_the_end(said),
            unseen=unseen,
            seconds=seconds,
            is_protected=guard.protection is not Protection.NONE,
            sent={path.name: path.read_bytes() for path in run_dir.glob(_SENT)},
        )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have signals that end us end the command first: it has a session of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _run_dir() -> Iterator[Path]:
    """A folder for the socket and the recordings; the path of a socket has at most 107 bytes."""
    try:
        run_dir = Path(tempfile.mkdtemp(prefix="memgate-"))
        if len(os.fsencode(run_dir / "socket")) >= 108:
            run_dir.rmdir()
            run_dir = Path(tempfile.mkdtemp(prefix="memgate-", dir="/tmp"))
    except OSError as error:
        raise OperatorError(
            f"a directory for temporary files is needed ({error.strerror}); name one that can be"
            " written, with a path of at most 80 characters, by the variable TMPDIR"
        ) from None
    try:
        yield run_dir
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _check_that_it_exists(question: CommandQuestion) -> None:
    """The guard starts the command, and would be the one to fail."""
    name = question.command[0]
    path = question.environment.get("PATH", os.defpath)
    is_there = shutil.which(name, path=path)
    if "/" in name and not is_there:
        is_there = shutil.which(question.directory / name)
    if not is_there and "/" in name and (question.directory / name).is_file():
        raise InputError(f"{name!r} cannot be executed: chmod +x, or name the program that runs it")
    if not is_there:
        raise InputError(f"{name!r}: there is no such program")


def _start(
    question: CommandQuestion, guard: Guard, run_dir: Path, terminal: int, output: BinaryIO
) -> subprocess.Popen[bytes]:
    variables = command_environment(
        question, guard.scratch, is_protected=guard.protection is not Protection.NONE
    )
    environment = guard.environment(with_programs(variables, run_dir))
    with _signals_of_a_command():
        return start_process(
            lambda: subprocess.Popen(
                guard.command(question.command),
                cwd=question.directory,
                env=environment,
                stdin=terminal,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that everything it starts can be ended with it
            )
        )


@contextmanager
def _signals_of_a_command() -> Iterator[None]:
    """Start a command with signals as it would have them in a terminal that stays open.

    We may ignore signals ourselves, in the background of a script; if the command did, too, all
    that it starts would look as if it ran in the background (``memgate_hook.descent``). And what a
    script leaves running must not end with its terminal, which ends with the script.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = {
        signal.SIGINT: signal.SIG_DFL,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_IGN,
    }
    # Handlers of ours stay: a new program begins without them.
    before = {number: signal.getsignal(number) for number in wanted}
    changed = {
        number: how
        for number, how in wanted.items()
        if how is signal.SIG_IGN or before[number] is signal.SIG_IGN
    }
    for number, how in changed.items():
        signal.signal(number, how)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])


def _end(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """End the command and all that it started."""
    children = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # those with a session of their own, as torchrun's workers, and those that left their parents
    others = [*children, *_find_daemons(run_dir)]
    for one in others:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    psutil.wait_procs(others, timeout=_ENDING_SECONDS)


def _find_daemons(run_dir: Path) -> Iterator[psutil.Process]:
    """Yield the processes that have the variables of this run, whoever their parents are."""
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.environ().get(RUN_DIR) == str(run_dir.resolve()):
                yield one


@contextmanager
def _shown(said: BinaryIO, output: BinaryIO | None) -> Iterator[None]:
    """Copy what is printed to ``output`` as it comes."""
    if output is None:
        yield
        return
    is_over = threading.Event()

    def copy() -> None:
        position = 0
        while True:
            was_over = is_over.wait(_SHOWING_SECONDS)
            while printed := os.pread(said.fileno(), 1 << 16, position):
                position += len(printed)
                output.write(printed)
            output.flush()
            if was_over:
                return

    copying = threading.Thread(target=copy, name="showing", daemon=True)
    copying.start()
    try:
        yield
    finally:
        is_over.set()
        copying.join()


def _read_the_end(output: BinaryIO) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LAST_BYTES))
    return output.read().decode(errors="replace")
