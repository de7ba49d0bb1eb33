"""What jobs took of their GPUs: Slurm's real prolog and epilog, with a driver that is played."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memgate import Client
from memgate.units import GIB
from tests.integration.slurm.jobs import NEEDS, SMALL
from tests.integration.slurm.played_nvml import PlayedNvml, measure
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate
from tests.running import wait_until

pytestmark = [
    *NEEDS,
    pytest.mark.slow,  # tests/unit/slurm/test_measuring.py plays the same without Slurm
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here"),
]


@pytest.fixture
def nvml(lab: SlurmLab, gate: Gate, tmp_path: Path) -> Iterator[PlayedNvml]:
    """Play a driver on the lab's node, and run the shipped prolog and epilog there."""
    played = PlayedNvml(lab.home / "nvml")
    measure(lab, played, gate.url, gate.key_file)
    yield played
    shutil.rmtree(lab.measuring)
    shutil.rmtree(played.home)


def _run(
    lab: SlurmLab,
    submit: Callable[..., Ran],
    command: str,
    meanwhile: Callable[[], None] = lambda: None,
) -> str:
    """Run a job; return the last line of its output, which the epilog writes."""
    output = lab.home / "work" / "output"
    output.unlink(missing_ok=True)
    ran = submit(SMALL, f"--output={output}", command=f"echo begun; {command}")
    meanwhile()
    wait_until(
        lambda: output.exists() and "memgate: job" in output.read_text(),
        f"the epilog, see {lab.measuring}",
        60,
    )
    last = output.read_text().splitlines()[-1]
    assert last.startswith(f"memgate: job {ran.job}: asked for t4 (14.56 GiB), predicted ")
    return last


@pytest.mark.usefixtures("known")
def test_the_owner_reads_what_a_job_took_and_memgate_learns_it(
    lab: SlurmLab, memgate: Client, submit: Callable[..., Ran], nvml: PlayedNvml
) -> None:
    """Of the job's own GPU and processes alone, at the end of its output."""
    nvml.add_process(1, 7, 9 * GIB, started=1e9)  # of an earlier job
    nvml.add_process(0, 8, 9 * GIB)  # of another GPU
    before = memgate.accuracy().all.num_outcomes

    line = _run(lab, submit, nvml.shell(minor=1, num_bytes=2 * GIB))

    assert line.endswith(", used 2.00 GiB")
    wait_until(lambda: memgate.accuracy().all.num_outcomes == before + 1, "the outcome", 30)
    assert not list((lab.measuring / "files").iterdir())


@pytest.mark.usefixtures("known")
def test_a_gpu_that_counts_nothing_is_looked_at(
    lab: SlurmLab, submit: Callable[..., Ran], nvml: PlayedNvml
) -> None:
    """By a program that ends with the job; it may miss a peak, and the line says so."""
    (nvml.home / "no_accounting").touch()
    (nvml.home / "used1").write_text(str(GIB))
    files, end = lab.measuring / "files", nvml.home / "end"

    def has_seen(text: str) -> bool:
        return any(text in path.read_text() for path in files.glob("*.seen"))

    def use_memory() -> None:
        wait_until(lambda: has_seen(":0,"), "the program that looks", 60)
        (nvml.home / "used1").write_text(str(4 * GIB))
        wait_until(lambda: has_seen(str(3 * GIB)), "the memory is seen", 60)
        end.touch()

    line = _run(lab, submit, f"until [ -e {end} ]; do sleep 0.1; done", use_memory)

    assert line.endswith(", used at least 3.00 GiB")
    wait_until(lambda: not list(files.iterdir()), "the program that looks ends", 30)


@pytest.mark.usefixtures("known")
def test_what_cannot_be_measured_is_said_to_be_not(
    lab: SlurmLab, submit: Callable[..., Ran], nvml: PlayedNvml
) -> None:
    """GIVEN MIG, THEN the line has the prediction alone, with the reason."""
    (nvml.home / "mig").touch()

    line = _run(lab, submit, nvml.shell(minor=1, num_bytes=2 * GIB))

    assert line.endswith("used not measured (MIG is on)")
