"""A Slurm and a memgate for all tests of a module."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from memgate import Client
from memgate_worker.standins.finding import cache_home
from tests.integration.slurm.jobs import LARGE, SMALL
from tests.integration.slurm.rehearsing import Rehearsing
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate, open_gate


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Make a directory that nobody may look into, with a short name."""
    with TemporaryDirectory(prefix="mg") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def shared_lab(home: Path, request: pytest.FixtureRequest) -> Iterator[SlurmLab]:
    """Start Slurm once for all tests of a module; with accounting where the module says so."""
    (home / "slurm").mkdir()
    home.chmod(0o755)
    with_accounting = getattr(request.module, "WITH_ACCOUNTING", False)
    with SlurmLab(home / "slurm", with_cli_filter=True, with_accounting=with_accounting) as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: SlurmLab) -> Iterator[SlurmLab]:
    """Leave no job to the next test."""
    yield shared_lab
    shared_lab.clear()


@pytest.fixture(scope="module")
def gate(home: Path, shared_redis_url: str, request: pytest.FixtureRequest) -> Iterator[Gate]:
    """Start memgate once for all tests of a module.

    It has much time for advice, which tests wait for, unless the module is about the defaults.
    """
    has_defaults = getattr(request.module, "WITH_DEFAULTS", False)
    seconds = "2" if has_defaults else "60"
    with open_gate(shared_redis_url, home, advice_seconds=seconds) as gate:
        yield gate


@pytest.fixture
def memgate(gate: Gate) -> Iterator[Client]:
    """Ask memgate from Python."""
    with Client(gate.url, api_key=gate.key) as client:
        yield client


@pytest.fixture
def submit(lab: SlurmLab, gate: Gate) -> Callable[..., Ran]:
    """Submit a job with a description, by somebody who is not root, under these settings."""

    def submit(job: object, *options: str, command: str = "exit 0", **settings: Any) -> Ran:
        lab.set(url=gate.url, key_file=str(gate.key_file), **settings)
        head = f"#MEMGATE {json.dumps(job)}"
        return lab.sbatch("--gres=gpu:t4:1", *options, head=head, command=command, nobody=True)

    return submit


@pytest.fixture
def known(memgate: Client) -> None:
    """Have memgate know the answers already."""
    for job in (SMALL, LARGE):
        memgate.estimate(job, {"name": "t4", "count": 1})


@pytest.fixture(scope="module")
def cache(home: Path) -> Path:
    """Make a cache in which each user has a directory; nobody's has what is already built."""
    path = home / "cache"
    path.mkdir()
    path.chmod(0o1777)
    own = path / "65534"
    if cache_home().is_dir():
        shutil.copytree(cache_home(), own, symlinks=True)
    else:
        own.mkdir()
    for one in (own, *own.rglob("*")):
        os.chown(one, 65534, 65534, follow_symlinks=False)
    own.chmod(0o700)
    return path


@pytest.fixture
def rehearsing(lab: SlurmLab, gate: Gate, memgate: Client, cache: Path) -> Iterator[Rehearsing]:
    """Rehearse what nobody has described."""
    # a machine may be so busy that three minutes are not enough
    lab.set(url=gate.url, key_file=str(gate.key_file), rehearsal_seconds=600)
    lab.set_policy({"on": {"undescribed": "rehearse"}})
    yield Rehearsing(lab, gate, memgate, cache)
    lab.set_policy({"mode": "enforce"})
