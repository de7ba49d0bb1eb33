"""Hears the processes of a run: a socket in the run's folder, a line of JSON for each message.

The other end is ``memgate_hook.session``.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import msgspec
import psutil

from memgate.errors import MemgateError, StandInsMissingError
from memgate_worker.engines.phantom.recorded import Raised
from memgate_worker.recorder.libraries import Libraries
from memgate_worker.recorder.lookups import Lookup
from memgate_worker.recorder.stopwatch import Stopwatch

_T = TypeVar("_T")

#: raised by what misses a process of its own, which we have ended: a notebook, a pool of processes
MISSING = {
    *("DeadKernelError", "BrokenProcessPool", "TerminatedWorkerError"),
    *("EOFError", "ConnectionResetError", "BrokenPipeError"),
}

#: how long to read what processes said that have ended; one that lives on says nothing more
_READING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class HeardWorld:
    """How many processes a job has, as a launcher or one of them says."""

    size: int
    nproc: int = 0
    nnodes: int = 0
    #: the launcher; empty if a process said so
    source: str = ""


@dataclass(slots=True)
class Heard:
    """What the processes of a run have said so far."""

    #: that have used CUDA, by process id
    devices: set[int] = field(default_factory=set)
    #: those of them that did so while another one had memory of the GPU
    at_once: set[int] = field(default_factory=set)
    #: files of recordings, by process id. A program whose process became another one (``exec``) has
    #: a number of its own instead, below zero, here and everywhere
    recordings: dict[int, str] = field(default_factory=dict)
    #: when processes were ended because they were watched long enough, by process id, in seconds
    #: since this machine was started
    stops: dict[int, float] = field(default_factory=dict)
    #: devices that were first used after such an end
    later_devices: set[int] = field(default_factory=set)
    #: processes that only did what those which were ended early told them: they go with them
    left_behind: set[int] = field(default_factory=set)
    #: what ended processes, by process id, in the order in which they ended
    failures: dict[int, Raised] = field(default_factory=dict)
    #: those of them that failed after another one was stopped
    later_failures: dict[int, Raised] = field(default_factory=dict)
    #: torch was imported, or a GPU was used or done with, so many times
    num_signs: int = 0
    #: why a process was stopped before it could do anything
    problems: list[str] = field(default_factory=list)
    #: programs that were ended because they would have changed a file around the guard
    ended: list[str] = field(default_factory=list)
    #: looks for NVIDIA's driver that found nothing
    lookups: list[Lookup] = field(default_factory=list)
    #: processes that have started those which used CUDA, however far up
    ancestors: set[int] = field(default_factory=set)
    #: an error of ours, raised while a process waited
    error: MemgateError | None = None
    #: the real cuDNN that was asked for plans
    cudnn: str | None = None
    num_steps: int = 0
    stage: str = ""
    #: the job's processes, if it has several
    world: HeardWorld | None = None
    #: the rank that runs, by process id, and those that wait until it has ended
    ranks: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    #: the command contradicts what the caller says
    refusal: str = ""

    @property
    def stopped_at(self) -> float | None:
        """When a process was last ended by us; None if none was."""
        return max(self.stops.values(), default=None)


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
        #: what processes said when they first used CUDA, by process id
        self._origins: dict[int, dict[str, Any]] = {}
        #: what processes that were ended early had started, by their ids
        self._families: dict[int, set[int]] = {}
        self._find_libraries = find_libraries
        self._on_progress = on_progress
        #: runs while processes wait for their stand-ins, which may have to be built
        self.building = Stopwatch()
        #: an error in this class, or in what it calls
        self.crash: Exception | None = None
        #: notified whenever something was heard
        self.changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._waiting: list[socket.socket] = []
        self._lets_go = False
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

    def let_go(self) -> None:
        """Have the processes end that wait, and all that will."""
        with self.changed:
            self._lets_go = True
            for connection in self._waiting:
                with suppress(OSError):
                    connection.sendall(b"{}\n")
            self._waiting.clear()

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
                with self.building.running():
                    answer = self._answer_about_torch(message)
                connection.sendall(json.dumps(answer).encode() + b"\n")
            with self.changed:
                self._take(message)
                if message["kind"] == "waits":
                    self._waiting.append(connection)
                self.changed.notify_all()
            if message["kind"] == "waits" and self._lets_go:
                self.let_go()
            if message["kind"] == "progress":
                self._on_progress(self.heard)

    def _answer_about_torch(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            found = self._find_libraries(Path(message["directory"]), message["path"])
        except MemgateError as error:
            self.heard.error = error
            return {"problem": error.message}
        except OSError as error:  # must not be taken for one of the connection
            self.heard.error = StandInsMissingError(f"the stand-ins cannot be looked for: {error}")
            return {"problem": self.heard.error.message}
        self.heard.cudnn = found.cudnn
        cudnn = str(found.cudnn_dir) if found.cudnn_dir else None
        cufft = str(found.cufft) if found.cufft else None
        return {"libraries": str(found.directory), "cudnn": cudnn, "cufft": cufft}

    def _take(self, message: dict[str, Any]) -> None:
        heard = self.heard
        heard.num_signs += message["kind"] in ("torch", "device", "recorded")
        match message["kind"]:
            case "device":
                self._take_device(message)
            case "progress":
                heard.num_steps = max(heard.num_steps, message["num_steps"])
                heard.stage = message["stage"]
            case "recorded":
                heard.recordings[message["pid"]] = message["file"]
                heard.left_behind |= _family_of(message["helpers"])
                if message["why"] != "end":
                    self._families[message["pid"]] = _family_of(message["children"])
                    heard.stops[message["pid"]] = message["at"]
            case "failed":
                failure = msgspec.convert(message["failure"], type=Raised)
                heard.failures[message["pid"]] = failure
                is_later = heard.stopped_at is not None and message["at"] > heard.stopped_at
                if is_later and failure.kind not in MISSING:
                    heard.later_failures[message["pid"]] = failure
            case "problem":
                heard.problems.append(message["message"])
            case "refused":
                heard.refusal = message["message"]
            case "world" | "rank" | "waits":
                self._take_rank(message)

    def _take_rank(self, message: dict[str, Any]) -> None:
        """Take up what a launcher says, or a process of several."""
        heard = self.heard
        size = message["world_size"]
        if message["kind"] == "world":
            heard.world = HeardWorld(size, message["nproc"], message["nnodes"], message["source"])
            return
        if heard.world is None or not heard.world.source:
            heard.world = HeardWorld(size)
        pid, rank = message["pid"], message["rank"]
        if message["kind"] == "rank":
            heard.ranks[pid] = rank
            return
        heard.waiting[pid] = rank
        # It may have looked at the GPU before, and does nothing more.
        heard.devices.discard(pid)
        heard.at_once.discard(pid)

    def _take_device(self, message: dict[str, Any]) -> None:
        heard, pid = self.heard, message["pid"]
        if self._origins.get(pid, message)["began"] != message["began"]:
            self._set_aside(pid)
        self._origins[pid] = message
        running = {other for other in heard.devices if is_running(other)}
        if others := (running | self._would_run_beside(message)) - {pid}:
            heard.at_once |= {pid, *others}
        heard.devices.add(pid)
        with suppress(psutil.Error):
            heard.ancestors |= {one.pid for one in psutil.Process(pid).parents()}
        if heard.stops:
            heard.later_devices.add(pid)

    def _would_run_beside(self, message: dict[str, Any]) -> set[int]:
        """Return the processes that we ended early and that would still be there."""
        return {
            other
            for other, at in self.heard.stops.items()
            if message["began"] < at
            or message["pid"] in self._families[other]
            or self._origins[other]["background"] not in (0, message["background"])
            or _is_waited_for_by(other, self._origins[other]["parent"])
        }

    def _set_aside(self, pid: int) -> None:
        """Give a program a number of its own: its process is another one now (``exec``)."""
        heard = self.heard
        number = -1 - sum(one < 0 for one in self._origins)
        self._origins[number] = self._origins.pop(pid)
        for known in (heard.devices, heard.at_once, heard.later_devices):
            if pid in known:
                known.remove(pid)
                known.add(number)
        _rename(heard.recordings, pid, number)
        _rename(heard.stops, pid, number)
        _rename(self._families, pid, number)
        _rename(heard.failures, pid, number)
        _rename(heard.later_failures, pid, number)


def _rename(known: dict[int, _T], old: int, new: int) -> None:
    if old in known:
        known[new] = known.pop(old)


def _is_waited_for_by(pid: int, parent: int) -> bool:
    """Tell whether a process has ended, and its parent has not asked for that yet.

    One that starts commands one after the other has, before it starts the next.
    """
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == parent
    return False


def _family_of(pids: Iterable[int]) -> set[int]:
    """Return processes, and all that they have started."""
    family = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            family |= {one.pid for one in psutil.Process(pid).children(recursive=True)}
    return family


def is_running(pid: int) -> bool:
    """Tell whether a process has what it took; one that ended may wait for its parent to know."""
    if pid < 0:  # a program whose process is another one now
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
