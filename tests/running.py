"""The programs of memgate as processes, on a Valkey of their own: for tests and benchmarks."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]

Started = TypeVar("Started")


class PortTakenError(AssertionError):
    """Another program was faster: a port that was free a moment ago is not."""


def free_port() -> int:
    """Return a port that nobody listens on, at this moment.

    Only for programs of others that must be given a number, and inside ``retry_taken``. Ours listen
    on port 0 and say which one they got (``serving``).
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def retry_taken(start: Callable[[], Started], tries: int = 5) -> Started:
    """Start what listens on ``free_port``; again, on other ports, if one was taken meanwhile."""
    for _ in range(tries - 1):
        with suppress(PortTakenError):
            return start()
    return start()


@contextmanager
def silent_port() -> Iterator[int]:
    """Keep a port on which nobody listens, and nobody else can: connections are refused."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])


def plain_environment() -> dict[str, str]:
    """Return this process's environment without settings; where runtimes are is no setting."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MEMGATE_") or name == "MEMGATE_RUNTIMES_DIR"
    }


@contextmanager
def running(
    module: str, log: Path, *, grace_seconds: float = 30, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m module`` with MEMGATE_* settings, and no others, while the block runs."""
    variables = {f"MEMGATE_{name.upper()}": value for name, value in settings.items()}
    known = plain_environment()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that listens."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        """The port that it got."""
        return int(self.url.rpartition(":")[2])


@contextmanager
def serving(
    log: Path, *, module: str = "memgate_service", grace_seconds: float = 30, **settings: str
) -> Iterator[Served]:
    """Run the service on a port of its own choice while the block runs, from when it listens."""
    before = log.stat().st_size if log.exists() else 0
    given = {"port": "0"} | settings
    with running(module, log, grace_seconds=grace_seconds, **given) as process:

        def is_listening() -> bool:
            assert process.poll() is None, log.read_text()
            return listening_url(log, before) is not None

        wait_until(is_listening, f"the service listens, see {log}", 120)
        url = listening_url(log, before)
        assert url is not None
        yield Served(url=url, process=process)


def listening_url(log: Path, offset: int = 0) -> str | None:
    """Return where a service listens, by its log; None if it does not yet."""
    with log.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            if line.endswith(b"\n") and b'"event":"listening"' in line:
                return str(json.loads(line)["url"])
    return None


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


def ask(
    url: str,
    method: str,
    body: object = None,
    *,
    wait: float = 0,
    content: str = "application/json",
) -> tuple[int, Any]:
    """Ask over HTTP, in JSON unless the body is of another type; status 0 without an answer."""
    headers = {"Content-Type": content, "Prefer": f"wait={wait:.0f}"}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(url, data=data, headers=headers, method=method)
    try:
        with urlopen(request, timeout=wait + 30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")
    except (URLError, OSError, http.client.HTTPException, json.JSONDecodeError):
        return 0, None


def post(url: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Send JSON; return status and body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(url, body, {"Content-Type": "application/json"} | named)
    try:
        with urlopen(request, timeout=90) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
