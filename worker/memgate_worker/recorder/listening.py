"""Hears the processes of a run: a socket in the run's folder, a line of JSON for each message.

The other end is ``memgate_hook.session``.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from memgate.errors import MemgateError
from memgate_worker.engines.phantom.recorded import Raised
from memgate_worker.recorder.libraries import Libraries

#: how long to read what processes said that have ended; one that lives on says nothing more
_READING_SECONDS = 5.0


@dataclass(slots=True)
class Heard:
    """What the processes of a run have said so far."""

    #: that have used CUDA, by process id
    devices: set[int] = field(default_factory=set)
    #: files of recordings, by process id
    recordings: dict[int, str] = field(default_factory=dict)
    #: a process has ended because it was watched long enough
    is_enough: bool = False
    #: what ended processes, by process id, in the order in which they ended
    failures: dict[int, Raised] = field(default_factory=dict)
    #: why a process was stopped before it could do anything
    problems: list[str] = field(default_factory=list)
    #: an error of ours, raised while a process waited
    error: MemgateError | None = None
    #: the real cuDNN that was asked for plans
    cudnn: str | None = None
    num_steps: int = 0
    stage: str = ""


class Listening:
    """Listens on a thread of its own for as long as it is entered."""

    def __init__(
        self,
        run_dir: Path,
        find_libraries: Callable[[Path, list[str]], Libraries],
        on_progress: Callable[[Heard], None],
    ) -> None:
        """``find_libraries`` is given the folder of a torch and the module search path."""
        self.heard = Heard()
        self._find_libraries = find_libraries
        self._on_progress = on_progress
        #: an error in this class, or in what it calls
        self.crash: Exception | None = None
        #: notified whenever something was heard
        self.changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._hearing: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(run_dir / "socket"))
        self._socket.listen(64)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="listening", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread that accepts; closing alone does not.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        # What processes said last, as they ended, may not have been read yet.
        deadline = time.monotonic() + _READING_SECONDS
        for thread in self._hearing:
            thread.join(max(0.0, deadline - time.monotonic()))
        for connection in self._connections:
            connection.close()

    def say_that_it_is_enough(self) -> None:
        """Have every process that uses CUDA write its recording and end."""
        for connection in self._connections:
            with suppress(OSError):
                connection.sendall(b'{"kind": "enough"}\n')

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # the run has ended
                return
            self._connections.append(connection)
            thread = threading.Thread(
                target=self._hear, args=(connection,), name="hearing", daemon=True
            )
            self._hearing.append(thread)
            thread.start()

    def _hear(self, connection: socket.socket) -> None:
        """Hear one process; if that fails, it must not wait for us, and the run has failed."""
        try:
            with connection, connection.makefile("rb") as lines:
                self._hear_lines(lines, connection)
        except OSError:  # the process, or the run, has ended
            return
        except Exception as error:
            with self.changed:
                self.crash = error
                self.changed.notify_all()

    def _hear_lines(self, lines: BinaryIO, connection: socket.socket) -> None:
        for line in lines:
            message = json.loads(line)
            if message["kind"] == "torch":
                answer = self._answer_about_torch(message)
                connection.sendall(json.dumps(answer).encode() + b"\n")
            with self.changed:
                self._take(message)
                self.changed.notify_all()
            if message["kind"] == "progress":
                self._on_progress(self.heard)

    def _answer_about_torch(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            found = self._find_libraries(Path(message["directory"]), message["path"])
        except MemgateError as error:
            self.heard.error = error
            return {"problem": error.message}
        self.heard.cudnn = found.cudnn
        cudnn = str(found.cudnn_dir) if found.cudnn_dir else None
        return {"libraries": str(found.directory), "cudnn": cudnn}

    def _take(self, message: dict[str, Any]) -> None:
        heard = self.heard
        match message["kind"]:
            case "device":
                heard.devices.add(message["pid"])
            case "progress":
                heard.num_steps = max(heard.num_steps, message["num_steps"])
                heard.stage = message["stage"]
            case "recorded":
                heard.recordings[message["pid"]] = message["file"]
                heard.is_enough |= message["why"] != "end"
            case "failed":
                heard.failures[message["pid"]] = msgspec.convert(message["failure"], type=Raised)
            case "problem":
                heard.problems.append(message["message"])
