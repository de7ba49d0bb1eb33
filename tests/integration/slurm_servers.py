"""What a Slurm controller may meet where memgate should be: the real one, and worse."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from memgate_worker.queue.keys import Role
from tests.integration.running import make_key
from tests.running import answers, running, serving, wait_until

#: what a server does with a connection on which a request has come
Manners = Callable[[socket.socket], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A real service with a real worker; callers need a key."""

    url: str
    key: str
    key_file: Path
    worker: subprocess.Popen[bytes]

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        """Keep the worker from answering while the block runs."""
        self.worker.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.worker.send_signal(signal.SIGCONT)


@contextmanager
def open_gate(redis_url: str, home: Path, *, advice_seconds: str = "2") -> Iterator[Gate]:
    """Run a service and a worker while the block runs; the default is that of the setting."""
    key = make_key(redis_url, Role.ADMIN)  # its program writes the audit
    key_file = home / "memgate.key"
    key_file.touch(mode=0o400)
    key_file.write_text(f"{key}\n")
    with (
        running(
            "memgate_worker", home / "w.log", redis_url=redis_url, advice_seconds=advice_seconds
        ) as worker,
        serving(home / "s.log", redis_url=redis_url, api_keys="required") as served,
    ):
        wait_until(lambda: answers(f"{served.url}/readyz"), "memgate", 180)
        yield Gate(url=served.url, key=key, key_file=key_file, worker=worker)


@contextmanager
def serve(manners: Manners) -> Iterator[str]:
    """Listen, hear a request, and do what these manners say; return the URL."""
    is_over = threading.Event()

    def converse(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(0.2)
            with suppress(TimeoutError):
                while connection.recv(65536).endswith(b"}") is False:
                    pass
            connection.settimeout(None)
            manners(connection)
            is_over.wait(20)  # what is silent does not hang up

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=converse, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over.set()
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def silence(_: socket.socket) -> None:
    """Accept, and say nothing."""


def drip(connection: socket.socket) -> None:
    """Say one byte at a time, for ever."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b" " * 2000:
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


def endless_head(connection: socket.socket) -> None:
    """Send headers, and never the line that ends them."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: and more\r\n" * 500)


def endless_line(connection: socket.socket) -> None:
    """Send a line that does not end."""
    while True:
        connection.sendall(b"x" * 65536)


def reply(status: int, body: bytes) -> Manners:
    """Answer with a status and some bytes, and hang up."""

    def manners(connection: socket.socket) -> None:
        head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)

    return manners


def cut_off(connection: socket.socket) -> None:
    """Promise more than comes."""
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"decision": "admit"')
    connection.shutdown(socket.SHUT_RDWR)


def hang_up(connection: socket.socket) -> None:
    """Hang up without a word."""
    connection.shutdown(socket.SHUT_RDWR)


def other_program(connection: socket.socket) -> None:
    """Speak another language."""
    connection.sendall(b"220 mail.example ESMTP ready\r\n")
    connection.shutdown(socket.SHUT_WR)
