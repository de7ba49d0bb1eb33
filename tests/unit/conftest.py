"""What holds for all of the fast tier: it runs the same with and without a runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the runtimes of this machine: a bare clone has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path_factory.mktemp("runtimes")))
        yield
