"""``memgate up`` under test: started for real, asked over HTTP, and its processes found by kind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.running import ask

ROOT = Path(__file__).parents[2]

#: short, so that what is lost is soon found; what is given up to is many of them
LEASE_SECONDS = 2.0

#: a busy machine imports torch slowly
START_SECONDS = 180.0

#: in the command of a process that runs jobs
_HOST = str(Path("memgate_worker") / "engines" / "start.py")

KINDS = ("job", "host", "worker", "service", "valkey")


class Whole:
    """Everything on this machine, started by one command. A context manager: it ends it."""

    def __init__(self, data: Path, **settings: str) -> None:
        self._settings = settings
        memgate = str(Path(sys.executable).parent / "memgate")
        self.command = [memgate, "up", "--data", str(data), "--port", "0"]
        self.data = data
        self._said = data / "said"
        #: where it listens, once it is up
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Whole:
        environment = os.environ | {"MEMGATE_LEASE_SECONDS": str(LEASE_SECONDS)} | self._settings
        environment.pop("MEMGATE_REDIS_URL", None)
        self._said.parent.mkdir(parents=True, exist_ok=True)
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdout=said, stderr=said
            )
        try:
            wait_until(self._is_up, START_SECONDS, "not ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.processes()
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self.process.kill()
        self.process.wait()
        for process in self.alive():
            process.kill()

    def _is_up(self) -> bool:
        """Find in what it says where it listens; it says so once it is ready."""
        assert self.process is not None
        said = self._said.read_text()
        assert self.process.poll() is None, said
        if found := re.search(r"memgate is up at (http://\S+),", said):
            self.url = found[1]
        return bool(found)

    def said(self) -> str:
        """Return what it has printed once all of it is there."""
        wait_until(lambda: "Ctrl-C" in self._said.read_text(), 10, "it said no more")
        return self._said.read_text()

    def ask(
        self, method: str, path: str, body: object = None, *, wait: float = 0
    ) -> tuple[int, Any]:
        """Ask over HTTP; status 0 if there was no answer."""
        return ask(f"{self.url}{path}", method, body, wait=wait)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to ``memgate up`` itself; remember what it has started."""
        assert self.process is not None
        self.processes()
        self.process.send_signal(number)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return what runs, by kind."""
        assert self.process is not None
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in KINDS}
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    self._seen.add(process)
                    if (kind := _kind(process)) is not None:
                        found[kind].append(process)
        return found

    def alive(self) -> list[psutil.Process]:
        """Return those of all the processes seen that still run."""
        return [process for process in self._seen if _runs(process)]

    def kill(self, kind: str, chance: random.Random, seconds: float = 5.0) -> bool:
        """Kill a process of a kind, without mercy; False if there is none for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if victims := self.processes()[kind]:
                with suppress(psutil.NoSuchProcess):
                    time.sleep(chance.random() * 0.3)  # not just as it begins
                    chance.choice(victims).kill()
                    return True
            time.sleep(0.005)
        return False


def wait_until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait, or fail the test."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def _kind(process: psutil.Process) -> str | None:
    command = " ".join(process.cmdline())
    if _HOST in command:
        parent = process.parent()
        is_job = parent is not None and _HOST in " ".join(parent.cmdline())
        return "job" if is_job else "host"
    if command.endswith("-m memgate_worker"):
        return "worker"
    if command.endswith("-m memgate_service"):
        return "service"
    return "valkey" if "valkey" in process.name() else None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
