"""Slurm and memgate as the page sets them up: every program runs, every setting has its default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.integration.slurm.jobs import release_command
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate
from tests.running import wait_until

GPU = "--gres=gpu:t4:1"

#: does not fit on a T4
RESNET: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet50"},
    "input": {"shape": [3, 224, 224]},
    "batch_size": 256,
    "optimizer": {"name": "Adam"},
}

#: `hold_seconds`, by default
HOLD_SECONDS = 60

_ENDED = {"COMPLETED", "CANCELLED", "FAILED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """A lab with the releaser and the broker beside its controller."""

    lab: SlurmLab
    gate: Gate
    #: an environment without the client's plugin, as any user can make it
    bypassed: dict[str, str]
    began: float = field(default_factory=time.time)

    def submit(self, job: object, *options: str, user: str = "nobody") -> Ran:
        """Submit a described job."""
        return self.lab.sbatch(GPU, *options, head=f"#MEMGATE {json.dumps(job)}", user=user)

    def submit_bypassing(self, job: object) -> Ran:
        """Submit one without asking in the client."""
        script = self.lab.home / "work" / f"own{time.monotonic_ns()}.sh"
        script.write_text(f"#!/bin/sh\n#MEMGATE {json.dumps(job)}\nexit 0\n")
        variables = [f"{name}={value}" for name, value in self.bypassed.items()]
        sbatch = ["sbatch", "--output=/dev/null", GPU, str(script)]
        return self.lab.run("env", *variables, *sbatch, nobody=True)

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Return what slurmctld says of all jobs, by their numbers."""
        said = json.loads(self.lab.run("squeue", "--json", "--states=all").out)["jobs"]
        return {job["job_id"]: job for job in said}

    def audit(self) -> list[dict[str, Any]]:
        """Return what memgate's audit has of this test, the oldest first."""
        time.sleep(1)  # it is polled, with the gate's own key, which has a limit of its own
        found: list[dict[str, Any]] = []
        start = ""
        while True:
            query = urlencode({"since": self.began - 1, "limit": 200, "start": start})
            request = Request(f"{self.gate.url}/audit?{query}")
            request.add_header("Authorization", f"Bearer {self.gate.key}")
            with urlopen(request, timeout=30) as answer:
                page = json.load(answer)
            found += page["entries"]
            start = page["next"]
            if not start:
                return found[::-1]

    def follow(self, held: Sequence[int], seconds: float = 600) -> Counter[str]:
        """Wait until each held job is settled and recorded; return what became of them.

        None started before its timer or its verdict: what does not fit has no other way in.
        """
        ends: dict[str, str] = {}
        seen: dict[int, dict[str, Any]] = {}

        def are_settled() -> bool:
            done = {"canceled", "noted"}  # a timer that ended is `released`, and followed up
            ends.update({one["job"]: one["done"] for one in self.audit() if one["done"] in done})
            seen.update(self.jobs())  # Slurm forgets them after five minutes
            return all(str(one) in ends and seen[one]["job_state"] in _ENDED for one in held)

        wait_until(are_settled, f"{len(held)} jobs are settled", seconds)
        for number in held:
            if (job := seen[number])["nodes"]:
                assert job["start_time"] - job["submit_time"] >= HOLD_SECONDS - 1, job
        return Counter(ends[str(number)] for number in held)


@contextmanager
def documented(lab: SlurmLab, gate: Gate, cache: Path) -> Iterator[Documented]:
    """Set Slurm up as the page says, and run memgate's programs beside it."""
    users = lab.home / "users.key"
    users.write_text(gate.key)
    users.chmod(0o644)
    lab.set(url=gate.url, key_file=str(gate.key_file), client_key_file=str(users))
    own = lab.home / "work" / "slurm.conf"
    text = (lab.etc / "slurm.conf").read_text()
    own.write_text(text.replace("CliFilterPlugins=lua", "CliFilterPlugins=none"))
    (own.parent / "gres.conf").write_text((lab.etc / "gres.conf").read_text())
    policy = str(lab.etc / "memgate.policy.json")
    release = release_command(gate, "--policy", policy, "--audit-file", str(lab.spool))
    rehearse = [
        *release[: release.index("release")],
        *("rehearse", "--server", gate.url, "--key-file", str(gate.key_file)),
        *("--client-key-file", str(users), "--policy", policy, "--partition", "rehearsals"),
        *("--cache", str(cache), "--results", str(lab.home / "rehearsals.json")),
        *("--memory", "4", "--cpus", "1"),
    ]
    with ExitStack() as stack:
        for name, command in (("release", release), ("rehearse", rehearse)):
            stack.enter_context(_running(command, lab, lab.home / f"{name}.log"))
        yield Documented(lab=lab, gate=gate, bypassed={"SLURM_CONF": str(own)})
    lab.set_policy({"mode": "enforce"})


@contextmanager
def _running(command: list[str], lab: SlurmLab, log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=lab.environment, stdout=output, stderr=output)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(30)


def watch_controller(lab: SlurmLab, jobs: list[Future[Ran]]) -> float:
    """Ask ``sinfo`` every 0.2 s until all are submitted; return the longest that it took."""
    waits = [0.0]
    while not all(job.done() for job in jobs):
        waits.append(lab.run("sinfo", "-h").seconds)
        time.sleep(0.2)
    return max(waits)


def describe_load() -> str:
    """Say how busy the machine is, beside a figure."""
    return f"load {os.getloadavg()[0]:.1f}"


def say(text: str) -> None:
    """Print a figure."""
    sys.stdout.write(f"\n{text}, {describe_load()}\n")
