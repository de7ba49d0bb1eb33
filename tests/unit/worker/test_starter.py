"""Processes that die with this one, started from any thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from memgate_worker.engines.starter import start_process

#: asks to be killed with its parent, says so, and waits to be told to end
_TIED = """
from memgate_worker.lifeline import die_with_parent
die_with_parent()
print("tied", flush=True)
input()
"""


def _popen() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-c", _TIED]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _in_a_thread(start: Any) -> Any:
    """Call in a thread that has ended when this returns."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(start())
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def _tied(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Wait until a process is tied to the thread that started it."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"tied\n"
    return process


@pytest.mark.parametrize("call", [_in_a_thread, lambda start: start()], ids=["thread", "main"])
def test_a_process_outlives_the_thread_that_wanted_it(call: Any) -> None:
    """Linux kills it with the thread that forked, so that must be one that stays."""
    with call(lambda: _tied(start_process(_popen))) as process:
        process.communicate(b"\n", timeout=10)

        assert process.returncode == 0


def test_what_cannot_be_started_is_raised_where_it_is_wanted() -> None:
    """The thread that starts processes goes on."""
    failed = _in_a_thread(lambda: start_process(lambda: subprocess.Popen(["/no/such/program"])))

    assert isinstance(failed, FileNotFoundError)
