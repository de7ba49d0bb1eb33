"""Jobs that nobody has described, and the broker that has them rehearsed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from memgate import Client
from memgate_service.admission.core.policy_file import PolicyFile
from memgate_service.admission.slurm.commands import SlurmCommands
from memgate_service.admission.slurm.rehearsals.broker import Broker, RehearsalLimits
from memgate_service.admission.slurm.rehearsals.known import KnownResults
from memgate_service.admission.slurm.rehearsals.starting import CompanionPlace
from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.slurm_lab import SlurmLab
from tests.integration.slurm_servers import Gate

PYTHON = read_runtimes()["torch-2.14"].python

#: trains with a batch of the size that is its first argument: each row takes 64 KiB, and more
TRAIN = """
import os, sys, torch
torch.cuda.set_device(int(os.environ.get("SLURM_LOCALID", os.environ.get("LOCAL_RANK", 0))))
model = torch.nn.Linear(16384, 16384).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(8):
    model(torch.zeros(int(sys.argv[1]), 16384, device="cuda")).relu().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_NOBODY = 65534

FITS, TOO_LARGE = "64", "120000"

_numbers = itertools.count()


class Rehearsing:
    """A broker beside a lab, and a directory of nobody's with code in it."""

    def __init__(self, lab: SlurmLab, gate: Gate, client: Client, cache: Path) -> None:
        self.lab = lab
        self.settings = {"url": gate.url, "key_file": str(gate.key_file)}
        key = lab.home / "users.key"
        key.write_text(gate.key)
        key.chmod(0o644)
        self.said: list[str] = []
        self.results = lab.home / "rehearsals.json"
        self._client = client
        place = CompanionPlace(
            server=gate.url,
            key_file=str(key),
            partition="rehearsals",
            num_cpus=1,
            memory_bytes=4 << 30,
            cache=str(cache),
        )
        self.run_in(place)

    def run_in(self, place: CompanionPlace) -> None:
        """Have companions run there from now on."""
        self.place = place
        self.broker = Broker(
            self._client,
            SlurmCommands(),
            place,
            self.lab.home / "state",
            self.said.append,
            limits=RehearsalLimits(max_rehearsals=2, patience_seconds=600),
            known=KnownResults(self.results),
            policy_file=PolicyFile(self.lab.etc / "memgate.policy.json", self.said.append),
        )

    def submit(
        self, commands: str, *options: str, files: dict[str, str] | None = None, argument: str = ""
    ) -> int:
        """Submit a script from a new directory that belongs to nobody, as nobody."""
        self.directory, script = make_project(self.lab, commands, files)
        self._last = [*options, str(script), *([argument] if argument else [])]
        return self.resubmit()

    def resubmit(self) -> int:
        """Submit the same job again."""
        options = ["--output=/dev/null", "--gres=gpu:t4:1", f"--chdir={self.directory}"]
        ran = self.lab.run("sbatch", *options, *self._last, nobody=True)
        self.lab_said = ran.err
        return ran.job

    def look(self) -> None:
        """Let the broker look once."""
        with in_lab(self.lab):
            self.broker.look()

    def settle(self, job_id: int, seconds: float = 580) -> dict[str, object]:
        """Let the broker look until a job is settled; return its record."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            record: dict[str, object] = self.lab.record(job_id)
            if record["decision"] != "rehearsal":
                return record
            time.sleep(0.5)
        raise AssertionError(f"job {job_id} was not settled: {self.said}")

    def contents(self) -> dict[str, bytes]:
        """Return the files of the job's directory."""
        paths = [path for path in self.directory.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}

    def processes(self) -> list[str]:
        """Return what still runs of nobody's a little later, but for the job itself."""
        until = time.monotonic() + 20
        while (found := [*_processes_of_nobody()]) and time.monotonic() < until:
            time.sleep(0.2)
        return found

    def num_jobs_of_nobody(self) -> int:
        """Return how many jobs nobody has submitted, companions included."""
        said = self.lab.run("squeue", "-h", "--states=all", "-u", "nobody").out
        return len(said.splitlines())


def make_project(
    lab: SlurmLab, commands: str, files: dict[str, str] | None = None
) -> tuple[Path, Path]:
    """Make a new directory that belongs to nobody, with code and a script; return both."""
    directory = lab.home / "work" / f"project{next(_numbers)}"
    directory.mkdir()
    for name, text in ({"train.py": TRAIN} | (files or {})).items():
        (directory / name).write_text(text)
    script = directory / "job.sh"
    script.write_text(f"#!/bin/bash\n{commands}\n")
    for path in (directory, *directory.iterdir()):
        os.chown(path, _NOBODY, _NOBODY)
    return directory, script


def _processes_of_nobody() -> Iterator[str]:
    for one in psutil.process_iter(["uids", "name"]):
        if one.info["uids"] and one.info["uids"].real == _NOBODY:
            yield one.info["name"]


@contextmanager
def in_lab(lab: SlurmLab) -> Iterator[None]:
    """Have Slurm's commands of this process talk to the lab."""
    before = dict(os.environ)
    os.environ["SLURM_CONF"] = lab.environment["SLURM_CONF"]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def train(argument: str, launcher: str = "srun") -> str:
    """Return the line of a script that trains."""
    return f"{launcher} {PYTHON} train.py {argument}".strip()
