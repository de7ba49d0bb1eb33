"""What the processes of a command say, and what follows from when they say it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import StandInsMissingError
from memgate_worker.recorder.libraries import Libraries
from memgate_worker.recorder.listening import Heard, Listening

FAILURE = {"kind": "ValueError", "message": "no", "last_line": "ValueError: no"}


def device(pid: int, began: float = 0.0) -> dict[str, Any]:
    """A process uses CUDA for the first time."""
    return {"kind": "device", "pid": pid, "began": began}


def recorded(pid: int, why: str = "evaluation", at: float = 10.0) -> dict[str, Any]:
    """A process has written its recording."""
    return {"kind": "recorded", "pid": pid, "file": f"{pid}.recording", "why": why, "at": at}


def hear(run_dir: Path, *messages: dict[str, Any]) -> Heard:
    """Say messages, each of them on a line of one process."""
    listening = Listening(run_dir, lambda *_: pytest.fail("nobody asks"), lambda _: None)
    with listening, socket.socket(socket.AF_UNIX) as line:
        line.connect(str(run_dir / "socket"))
        for message in (*messages, {"kind": "problem", "message": "that is all"}):
            line.sendall(json.dumps(message).encode() + b"\n")
        with listening.changed:
            assert listening.changed.wait_for(lambda: listening.heard.problems, timeout=10)
    assert listening.crash is None
    return listening.heard


@contextmanager
def another() -> Iterator[int]:
    """Have a process that runs."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.communicate()


def test_processes_that_have_memory_at_the_same_time_are_known(tmp_path: Path) -> None:
    """The first one still runs when the second uses CUDA."""
    with another() as pid:
        assert hear(tmp_path, device(pid), device(os.getpid())).at_once == {pid, os.getpid()}


def test_processes_one_after_the_other_do_not_share_memory(tmp_path: Path) -> None:
    """The first one has ended, though nobody may have asked how."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from now on

    heard = hear(tmp_path, device(process.pid), recorded(process.pid, "end"), device(os.getpid()))
    process.wait()

    assert heard.at_once == set()
    assert heard.devices == {process.pid, os.getpid()}
    assert heard.stopped_at is None


@pytest.mark.parametrize(("began", "want"), [(5.0, {1 << 22, 3}), (11.0, set())])
def test_one_that_was_ended_early_would_still_be_there(
    tmp_path: Path, began: float, want: set[int]
) -> None:
    """Unless the other one was only started after that."""
    stopped = 1 << 22  # no process has this number any more

    heard = hear(tmp_path, device(stopped), recorded(stopped, at=10.0), device(3, began))

    assert heard.at_once == want
    assert heard.later_devices == {3}
    assert heard.stopped_at == 10.0


@pytest.mark.parametrize(("began", "want"), [(5.0, []), (11.0, [8])])
def test_failures_of_later_commands_are_known(
    tmp_path: Path, began: float, want: list[int]
) -> None:
    """A launcher that misses a process of its own was there before."""
    failed = {"kind": "failed", "pid": 8, "failure": FAILURE, "began": began}

    heard = hear(tmp_path, recorded(3), failed, device(9))

    assert [*heard.later_failures] == want
    assert [*heard.failures] == [8]


def _ask(run_dir: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as asking, asking.makefile("rwb") as line:
        asking.connect(str(run_dir / "socket"))
        line.write(b'{"kind": "torch", "directory": "/torch", "path": []}\n')
        line.flush()
        return dict(json.loads(line.readline() or b"{}"))


def test_a_file_that_cannot_be_read_is_not_taken_for_a_lost_connection(tmp_path: Path) -> None:
    """The process is told, and so is the caller."""

    def find(_: Path, __: list[str]) -> Libraries:
        raise PermissionError(13, "Permission denied", "/root/x")

    with Listening(tmp_path, find, lambda _: None) as listening:
        answer = _ask(tmp_path)

    assert "Permission denied: '/root/x'" in answer["problem"]
    assert isinstance(listening.heard.error, StandInsMissingError)


def test_a_crash_is_kept_for_the_caller(tmp_path: Path) -> None:
    """Whether the command still runs or not."""

    def find(_: Path, __: list[str]) -> Libraries:
        raise ZeroDivisionError

    with Listening(tmp_path, find, lambda _: None) as listening:
        assert _ask(tmp_path) == {}

    with pytest.raises(ZeroDivisionError):
        raise listening.crash or AssertionError
