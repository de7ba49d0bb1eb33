"""The programs of memgate as processes, on a Valkey of their own: for tests and benchmarks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(
    module: str, log: Path, *, grace_seconds: float = 30, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m module`` with MEMGATE_* settings while the block runs."""
    variables = {f"MEMGATE_{name.upper()}": value for name, value in settings.items()}
    known = {name: value for name, value in os.environ.items() if not name.startswith("MEMGATE_")}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            cwd=ROOT,
            env=known | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(is_true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Tell whether something answers there, and with success."""
    try:
        with urlopen(url, timeout=2):
            return True
    except (URLError, OSError):
        return False


def post(url: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Send JSON; return status and body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(url, body, {"Content-Type": "application/json"} | named)
    try:
        with urlopen(request, timeout=90) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
