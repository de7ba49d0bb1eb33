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
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from memgate.errors import ProcessLostError
from memgate_worker.lifeline import die_with_parent

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

    def __init__(self) -> None:
        """Nothing is started yet."""
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
                process = subprocess.Popen(
                    [*_COMMAND, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
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


def serve(number: int, answer: Callable[[bytes], None], prepare: Callable[[], None]) -> None:
    """Answer questions that come to a socket, each in a child, until the other end is closed.

    ``answer`` is called in the child; ``prepare`` once, here, after the first answer: until then it
    is not known that there will be more.
    """
    with socket.socket(fileno=number) as door:
        while True:
            asked, files, _, _ = socket.recv_fds(door, len(_ASK), _NUM_FILES)
            if not asked:
                return
            if (child := os.fork()) == 0:
                _be_the_child(door, files, answer)
            for file in files:
                os.close(file)
            _, status = os.waitpid(child, 0)
            door.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))
            prepare()


def _be_the_child(door: socket.socket, files: list[int], answer: Callable[[bytes], None]) -> None:
    """Read the upload as standard input, answer, and end."""
    status = 1
    try:
        if sys.platform == "linux":
            die_with_parent()
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
