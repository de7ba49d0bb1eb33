"""A real Valkey server, a real kube-apiserver, for the tests that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.gates import Gate
from tests.integration.queue_place import Place, Stub
from tests.valkey import running_valkey

if TYPE_CHECKING:
    from tests.integration.kube_lab import Lab


@pytest.fixture
def redis_url() -> Iterator[str]:
    """Start a Valkey server of the test's own and return where it is."""
    with running_valkey() as url:
        yield url


@pytest.fixture(scope="module")
def shared_redis_url() -> Iterator[str]:
    """Start a Valkey server for all tests of a module; for what is slow to start on it."""
    with running_valkey() as url:
        yield url


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
def make_gate(redis_url: str) -> Iterator[Callable[..., Gate]]:
    """Make services with settings, all on one server."""
    clients: list[TestClient] = []

    def make(**settings: Any) -> Gate:
        given: dict[str, Any] = {"redis_url": redis_url, "admission_wait_seconds": 0.05} | settings
        client = TestClient(create_app(ServiceSettings(**given)))
        clients.append(client.__enter__())
        return Gate(clients[-1])

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def gate(make_gate: Callable[..., Gate]) -> Gate:
    """Make one with the settings there are by default."""
    return make_gate()


@pytest.fixture(scope="session")
def engine() -> Iterator[PhantomEngine]:
    """Start an engine for all tests: warm after the first; every job has its own process."""
    with PhantomEngine(read_runtimes()["torch-2.14"]) as engine:
        yield engine


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Make a directory whose name is short enough for a socket in it."""
    with TemporaryDirectory(prefix="mg") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start a Kubernetes API server for all the tests that are marked ``kubernetes``."""
    from tests.integration.kube_lab import running_lab  # the client takes a second to import

    with running_lab(tmp_path_factory.mktemp("kubernetes")) as lab:
        yield lab
