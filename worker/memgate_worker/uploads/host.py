"""A process that is kept for uploads, and the door to it.

Importing what reads an upload takes longer than reading most of them. So a worker keeps a process
that has imported it (``serve``, started by ``process``) and forks for each upload. It never looks
at one itself: a child does, within its limits, and ends.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

import memgate
import memgate_worker
from memgate.errors import ProcessLostError
from memgate_worker.own_gpus import VARIABLE as GPUS_VARIABLE
from memgate_worker.sandbox.cell import Cell
from memgate_worker.sandbox.confine import Jobs
from memgate_worker.sandbox.housing import House
from memgate_worker.sandbox.policy import SandboxPolicy

_COMMAND = (sys.executable, "-P", "-m", "memgate_worker.uploads.process", "--serve")

#: what is asked has no size: an upload, the question, and where answer and complaints go are files
_ASK = b"?"
_NUM_FILES = 4
_STATUS = struct.Struct("<i")


class Ended(NamedTuple):
    """How a process that read an upload ended."""

    #: negative if a signal ended it
    status: int
    said: bytes
    complaints: bytes


class UploadHost:
    """Keeps the process; it is started when it is first needed, and again if it is lost."""

    def __init__(self, policy: SandboxPolicy | None = None) -> None:
        """Nothing is started yet; ``policy`` says which sandbox it runs in, None: none."""
        self._policy = policy
        self._house: House | None = None
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._started is None else self._started[0].pid

    def ask(self, question: bytes, upload: BinaryIO, seconds: float) -> Ended:
        """Have a child answer a question about an upload.

        Raises:
            TimeoutError: if that takes longer; the child was ended.
            ProcessLostError: if the process was ended from outside.
        """
        try:
            with (
                tempfile.TemporaryFile() as asked,
                tempfile.TemporaryFile() as said,
                tempfile.TemporaryFile() as complaints,
            ):
                asked.write(question)
                asked.seek(0)
                status = self._ask([upload, said, complaints, asked], seconds)
                said.seek(0)
                complaints.seek(0)
                return Ended(status, said.read(), complaints.read())
        except BaseException:  # whatever the reason: nobody waits for the answer
            self.stop()
            raise

    def _ask(self, files: list[BinaryIO], seconds: float) -> int:
        door = self._start()
        door.settimeout(seconds)
        try:
            socket.send_fds(door, [_ASK], [file.fileno() for file in files])
            (status,) = _STATUS.unpack(door.recv(_STATUS.size, socket.MSG_WAITALL))
        except (ConnectionError, struct.error):
            raise ProcessLostError("the process that reads uploads was ended; ask again") from None
        assert isinstance(status, int)
        return status

    def _start(self) -> socket.socket:
        if self._started is None:
            ours, theirs = socket.socketpair()
            with theirs:
                command = [*_COMMAND, str(theirs.fileno())]
                environment: dict[str, str] = {**os.environ}
                joined_by: tuple[int, ...] = ()
                if self._policy is not None:
                    self._house = House(self._policy, _seen())
                    environment = self._house.environment(_little_environment())
                    command, joined_by = self._house.command(command), self._house.joined_by
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno(), *joined_by],
                    start_new_session=True,  # Ctrl-C is for us, and we end it with its children
                )
            self._started = process, ours
        return self._started[1]

    def stop(self) -> None:
        """End the process and its children, if there are any."""
        if self._started is not None:
            process, door = self._started
            self._started = None
            door.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._house is not None:
            self._house.close()
            self._house = None


def _seen() -> tuple[Path, ...]:
    """Return what of the machine is seen by what reads uploads: its program, and own GPUs."""
    packages = [Path(one.__file__ or "").parent for one in (memgate, memgate_worker)]
    gpus = os.environ.get(GPUS_VARIABLE, "").strip()
    own = [Path(gpus)] if gpus and not gpus.startswith("{") else []
    return (*packages, *own, Path(sys.prefix), Path(sys.base_prefix), *_importable())


def _importable() -> Iterator[Path]:
    """Yield the directories of modules that are no part of the interpreter's."""
    for path in map(Path, sys.path):
        if path.is_absolute() and path.name in ("site-packages", "dist-packages"):
            yield path


def _little_environment() -> dict[str, str]:
    kept = ("PATH", "LANG", GPUS_VARIABLE)
    return {name: os.environ[name] for name in kept if name in os.environ}


def serve(number: int, answer: Callable[[bytes], None], prepare: Callable[[], None]) -> None:
    """Answer questions that come to a socket, each in a child, until the other end is closed.

    ``answer`` is called in the child; ``prepare`` once, here, after the first answer: until then it
    is not known that there will be more.
    """
    jobs = Jobs(Cell.take_from_environment())
    with socket.socket(fileno=number) as door:
        while True:
            asked, files, _, _ = socket.recv_fds(door, len(_ASK), _NUM_FILES)
            if not asked:
                return
            child = jobs.fork(partial(_be_the_child, door, files, answer), keeps=files)
            for file in files:
                os.close(file)
            _, status = os.waitpid(child, 0)
            jobs.end()
            door.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))
            prepare()


def _be_the_child(
    door: socket.socket, files: list[int], answer: Callable[[bytes], None]
) -> NoReturn:
    """Read the upload as standard input, answer, and end."""
    status = 1
    try:
        door.close()
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        with os.fdopen(files[3], "rb") as asked:
            answer(asked.read())
        status = 0
    except BaseException:  # as a process of its own would end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
