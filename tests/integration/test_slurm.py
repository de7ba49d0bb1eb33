"""Jobs come to a real Slurm, and a real memgate says whether they fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from service.client import MemgateClient
from tests.integration.slurm_lab import Ran, SlurmLab, needs_slurm
from tests.integration.slurm_servers import Gate, open_gate
from worker.runtime import read_runtimes

pytestmark = [
    needs_slurm,
    pytest.mark.skipif(
        not read_runtimes()["torch-2.14"].is_installed,
        reason="runtime torch-2.14 is not built: make runtime",
    ),
]

SMALL: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "squeezenet1_1"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 4,
    "iterations": 1,
}
#: too much for a T4, not for an A100
LARGE = SMALL | {"input": {"shape": [3, 224, 224]}, "batch_size": 1000}


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Make a directory that nobody may look into, with a short name."""
    with TemporaryDirectory(prefix="mg") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def lab(home: Path) -> Iterator[SlurmLab]:
    """Start Slurm once for all tests here."""
    (home / "slurm").mkdir()
    home.chmod(0o755)
    with SlurmLab(home / "slurm") as lab:
        yield lab


@pytest.fixture(scope="module")
def gate(home: Path, shared_redis_url: str) -> Iterator[Gate]:
    """Start memgate once for all tests here."""
    with open_gate(shared_redis_url, home) as gate:
        yield gate


@pytest.fixture
def memgate(gate: Gate) -> Iterator[MemgateClient]:
    """Ask memgate from Python."""
    with MemgateClient(gate.url, api_key=gate.key) as client:
        yield client


@pytest.fixture
def submit(lab: SlurmLab, gate: Gate) -> Callable[..., Ran]:
    """Submit a job with a description, by somebody who is not root, under these settings."""

    def submit(job: object, *options: str, gpu: str = "t4", **settings: Any) -> Ran:
        lab.set(url=gate.url, key_file=str(gate.key_file), **settings)
        head = f"#MEMGATE {json.dumps(job)}" if job else ""
        return lab.sbatch(f"--gres=gpu:{gpu}:1", *options, head=head, nobody=True)

    return submit


@pytest.fixture
def known(memgate: MemgateClient) -> None:
    """Have memgate know the answers already."""
    for job in (SMALL, LARGE):
        memgate.estimate(job, {"name": "t4", "count": 1})


@pytest.mark.usefixtures("known")
def test_a_job_that_fits_runs(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """GIVEN a known answer, THEN it is let in at once, runs, and bears the estimate."""
    ran = submit(SMALL)

    assert "sbatch: memgate: this job fits on t4 (gpu:t4): it needs" in ran.err
    lab.wait_for(ran.job, "COMPLETED")
    record = lab.record(ran.job)
    assert (record["decision"], record["gpu"]) == ("admit", "t4")
    assert 0 < record["peak"] < record["capacity"]
    assert len(record["id"]) == 32
    assert ran.seconds < 1


@pytest.mark.usefixtures("known")
def test_a_job_that_does_not_fit_is_refused(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """With what its owner can do: a smaller batch, or a GPU of this cluster."""
    ran = submit(LARGE, public_url="https://memgate.example/")

    assert ran.status == 1
    lines = [line.removeprefix("sbatch: error: ") for line in ran.err.splitlines()]
    assert lines[0].startswith("memgate: this job does not fit on t4 (gpu:t4): it needs ")
    assert lines[0].endswith("the GPU has 14.56 GiB")
    assert lines[1].startswith("memgate: the largest batch that fits there: ")
    assert 0 < int(lines[1].rpartition(" ")[2]) < LARGE["batch_size"]
    assert lines[2] == "memgate: the smallest GPU here on which it fits: --gres=gpu:a100:1"
    assert lines[3].startswith("memgate: https://memgate.example/jobs/")
    assert len(lines) == 5


@pytest.mark.usefixtures("known")
def test_reject_may_be_told_only(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """For who wants to watch before it counts."""
    ran = submit(LARGE, on_reject="admit")

    lab.wait_for(ran.job, "COMPLETED")
    assert "does not fit" in ran.err
    assert lab.record(ran.job)["decision"] == "reject"


def test_a_wrong_description_is_refused_with_memgates_words(submit: Callable[..., Ran]) -> None:
    """Its owner learns which field is wrong."""
    ran = submit(SMALL | {"batch_size": 0})

    assert ran.status == 1
    assert "this job's description is wrong: job.batch_size is 0: Input should be" in ran.err
