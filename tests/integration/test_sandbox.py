"""Commands in a sandbox on this machine: no network, no processes left, nothing seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.sandbox import FAILED_STATUS, Sandbox, choose_level
from tests.running import wait_until

_CHOICE = choose_level((Level.ROOT, Level.NAMESPACES))

needs_namespaces = pytest.mark.skipif(
    not _CHOICE.level.is_apart, reason=f"no namespaces here: {_CHOICE.refusals}"
)

_CONNECT = (
    "import socket; socket.socket(socket.AF_UNIX); socket.create_connection(('192.0.2.1', 9), 2)"
)
_LOCAL = (
    "import socket; one = socket.create_server(('127.0.0.1', 0));"
    " socket.create_connection(one.getsockname())"
)


def run(level: Level, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a sandbox."""
    sandbox = Sandbox(level=level, **options)  # type: ignore[arg-type]
    return subprocess.run(
        sandbox.command(command), capture_output=True, text=True, check=False, timeout=60
    )


@needs_namespaces
def test_no_network_but_the_machine_itself() -> None:
    """Ranks of a job find each other; nobody else is found."""
    away = run(_CHOICE.level, sys.executable, "-c", _CONNECT)
    here = run(_CHOICE.level, sys.executable, "-c", _LOCAL)

    assert (away.returncode, "unreachable" in away.stderr) == (1, True), away.stderr
    assert here.returncode == 0, here.stderr


@needs_namespaces
def test_nothing_outlives_the_command() -> None:
    """Not even what has left its session; its exit status is the sandbox's."""
    mark = f"memgate-{os.getpid()}"
    script = f"setsid sh -c 'exec -a {mark} sleep 600' & ps ax | grep -c . ; exit 7"
    ran = run(_CHOICE.level, "bash", "-c", script)

    assert ran.returncode == 7
    assert int(ran.stdout) < 12  # it sees its own processes alone

    def is_gone() -> bool:
        return not any(
            mark in " ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])
        )

    wait_until(is_gone, mark, 30)


@needs_namespaces
def test_a_private_directory_is_in_memory(tmp_path: Path) -> None:
    """It is empty, has a bound, and what is written there is gone."""
    (tmp_path / "mine").write_text("x")
    script = f"ls {tmp_path}; head -c 3000000 /dev/zero > {tmp_path}/new"
    ran = run(_CHOICE.level, "sh", "-c", script, memory_at=tmp_path, memory_bytes=1 << 20)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@needs_namespaces
def test_a_command_that_is_not_there_is_told() -> None:
    """By a status of its own."""
    ran = run(_CHOICE.level, "/nonexistent/program")

    assert (ran.returncode, ran.stderr) == (
        FAILED_STATUS,
        "memgate sandbox: No such file or directory\n",
    )


def test_without_namespaces_there_are_local_sockets_only() -> None:
    """By a filter of system calls."""
    ran = run(Level.LANDLOCK, sys.executable, "-c", _CONNECT)

    assert (ran.returncode, "not supported" in ran.stderr) == (1, True), ran.stderr
