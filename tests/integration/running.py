"""The service as a program of its own, for tests of what only shows over a socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rq import SimpleWorker

from memgate_service.settings import ServiceSettings
from memgate_worker.main import make_worker
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.keys import KeyRing, Right, Role
from memgate_worker.settings import WorkerSettings
from tests.running import serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that runs."""

    port: int
    pid: int
    log: Path

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        """Open a connection; nothing is said yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def say(self, *pieces: bytes) -> bytes:
        """Send bytes and return all that comes back until it hangs up."""
        with self.connect() as connection:
            for piece in pieces:
                try:
                    connection.sendall(piece)
                except OSError:  # it has heard enough
                    break
            return hear(connection)

    def peak_bytes(self) -> int:
        """Return the most memory that it had so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("Linux tells")


def hear(connection: socket.socket) -> bytes:
    """Return all that comes until the other side hangs up."""
    heard = b""
    try:
        while piece := connection.recv(65536):
            heard += piece
    except ConnectionError:
        pass
    return heard


@contextmanager
def running(redis_url: str, log: Path, **settings: object) -> Iterator[Running]:
    """Run ``python -m memgate_service`` with settings, by their names."""
    given = {name: str(value) for name, value in settings.items()}
    with serving(log, grace_seconds=60, redis_url=redis_url, **given) as served:
        yield Running(port=served.port, pid=served.process.pid, log=log)


def make_key(redis_url: str, rights: Role | Right, user: str = "") -> str:
    """Make an API key."""
    allowed = rights.rights if isinstance(rights, Role) else rights
    queue = QueueClient(ServiceSettings(redis_url=redis_url))
    try:
        return KeyRing(queue.store).make("test", allowed, user)
    finally:
        queue.close()


@contextmanager
def idle_worker(redis_url: str) -> Iterator[SimpleWorker]:
    """Have a worker that is there for as long as the test takes, and does nothing."""
    worker = make_worker(WorkerSettings(redis_url=redis_url))
    worker.register_birth()
    worker.connection.persist(worker.key)
    try:
        yield worker
    finally:
        worker.register_death()  # type: ignore[no-untyped-call]
        worker.connection.close()


def trusting() -> ssl.SSLContext:
    """Make a context that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
