"""Plain environments with torch and all of NVIDIA's packages, which know nothing of memgate.

They take 25 GB and are made by ``make test-environments``, below `build/environments` or in
`MEMGATE_TEST_ENVIRONMENTS`; without them these tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.standins.build import CORE_NAME, TRACKER_NAME
from memgate_worker.standins.finding import Standins, find_standins
from tests.integration.test_standins import TRAINING, run_program

pytestmark = pytest.mark.environments

HOME = Path(os.environ.get("MEMGATE_TEST_ENVIRONMENTS", "build/environments")).resolve()

#: torch, the runtime with the same one, and the cuDNN that it brings if that can be asked for plans
VERSIONS = [
    ("2.4.1", None, False),
    ("2.6.0", "torch-2.6", False),
    ("2.9.1", None, True),
    ("2.14.1", "torch-2.14", True),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build into a cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMGATE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def _find(version: str) -> tuple[Path, Standins]:
    environment = HOME / f"torch-{version}"
    packages = sorted(environment.glob("lib/python3.*/site-packages"))
    if not packages:
        pytest.skip(f"there is no {environment}: make test-environments")
    return environment / "bin" / "python", find_standins(packages[0] / "torch")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("model", ["cnn", "gpt"])
@pytest.mark.parametrize(("version", "runtime", "has_cudnn"), VERSIONS)
def test_a_plain_environment_trains_on_the_phantom(
    version: str, runtime: str | None, has_cudnn: bool, model: str
) -> None:
    """As in our runtime with the same torch, both without cuDNN; nothing of NVIDIA's is opened."""
    python, standins = _find(version)
    assert (standins.cudnn is not None) == has_cudnn

    got = run_program(python, TRAINING, replace(standins, cudnn_dir=None), model)

    assert got["torch"].startswith(version)
    assert got["refused"] == []
    assert [path for path in got["mapped"] if "/nvidia/" in path] == []
    if runtime is None:
        return
    ours = read_runtimes()[runtime]
    loaded = (ours.stubs / CORE_NAME, *sorted(ours.stubs.glob("lib*.so.*")))
    same = replace(standins, libraries=loaded, tracker=ours.stubs / TRACKER_NAME, cudnn_dir=None)
    assert got["rows"] == run_program(ours.python, TRAINING, same, model)["rows"]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("version", [version for version, _, has_cudnn in VERSIONS if has_cudnn])
def test_the_jobs_own_cudnn_plans_its_convolutions(version: str) -> None:
    """Its workspaces are allocated on top; the language model has none."""
    python, standins = _find(version)

    planned = run_program(python, TRAINING, standins, "cnn")
    plain = run_program(python, TRAINING, replace(standins, cudnn_dir=None), "cnn")

    assert any("libcudnn_graph.so.9" in path for path in planned["mapped"])
    assert planned["refused"] == []
    assert len(planned["rows"]) > len(plain["rows"])
