"""What the processes of a command say, and what follows from when they say it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import StandInsMissingError
from memgate_worker.recorder.libraries import Libraries
from memgate_worker.recorder.listening import Heard, Listening

FAILURE = {"kind": "ValueError", "message": "no", "last_line": "ValueError: no"}


def device(pid: int, began: float = 0.0, *, parent: int = 1, background: int = 0) -> dict[str, Any]:
    """A process uses CUDA for the first time."""
    origin = {"parent": parent, "background": background}
    return {"kind": "device", "pid": pid, "began": began, **origin}


def recorded(
    pid: int, why: str = "evaluation", at: float = 10.0, children: Sequence[int] = ()
) -> dict[str, Any]:
    """A process has written its recording."""
    file = f"{pid}.recording"
    return {
        "kind": "recorded",
        "pid": pid,
        "file": file,
        "why": why,
        "at": at,
        "children": [*children],
        "helpers": [*children],
    }


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


@pytest.mark.parametrize(
    ("at", "kind", "want"),
    [(5.0, "ValueError", []), (11.0, "ValueError", [8]), (11.0, "BrokenProcessPool", [])],
    ids=["before", "after", "one that misses a process of its own"],
)
def test_failures_after_a_job_was_ended_are_known(
    tmp_path: Path, at: float, kind: str, want: list[int]
) -> None:
    """What the job would have written is not there; that its process is gone is no failure."""
    failed = {"kind": "failed", "pid": 8, "failure": FAILURE | {"kind": kind}, "at": at}

    heard = hear(tmp_path, device(3), recorded(3), failed, device(9))

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


def test_a_program_that_another_one_replaced_counts_beside_it(tmp_path: Path) -> None:
    """Both have the same process, one after the other (``exec``)."""
    pid = os.getpid()

    heard = hear(tmp_path, device(pid, 1.0), recorded(pid, "end"), device(pid, 2.0))

    assert (heard.devices, heard.recordings) == ({-1, pid}, {-1: f"{pid}.recording"})
    assert heard.at_once == set()


@pytest.mark.parametrize(
    ("of_the_first", "of_the_second", "want"),
    [(0, 0, set()), (7, 0, {7, 8}), (7, 7, set()), (7, 8, {7, 8}), (0, 8, set())],
    ids=["neither", "the first", "both, after another", "both, beside another", "the second"],
)
def test_what_ran_in_the_background_would_still_run(
    tmp_path: Path, of_the_first: int, of_the_second: int, want: set[int]
) -> None:
    """A script does not wait for it, so its end by us says nothing."""
    first, second = 1 << 22 | 7, 1 << 22 | 8  # no processes have such numbers

    heard = hear(
        tmp_path,
        device(first, background=of_the_first),
        recorded(first, at=10.0),
        device(second, 20.0, background=of_the_second),
    )

    assert heard.at_once == {1 << 22 | one for one in want}


def test_what_nobody_has_waited_for_would_still_run(tmp_path: Path) -> None:
    """Its parent started the next one without asking for its end."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    heard = hear(
        tmp_path,
        device(ended.pid, parent=os.getpid()),
        recorded(ended.pid),
        device(os.getpid(), 20.0),
    )
    ended.wait()

    assert heard.at_once == {ended.pid, os.getpid()}


def test_what_an_ended_job_had_started_would_run_beside_it(tmp_path: Path) -> None:
    """However late its interpreter came to say so."""
    with another() as pid:
        heard = hear(tmp_path, device(7), recorded(7, children=[pid]), device(pid, 20.0))

    assert heard.at_once == {7, pid}


def test_what_a_job_had_started_goes_with_it(tmp_path: Path) -> None:
    """Workers of its data loaders, for instance."""
    with another() as pid:
        assert hear(tmp_path, device(7), recorded(7, children=[pid])).left_behind == {pid}
