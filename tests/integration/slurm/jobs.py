"""The jobs that tests submit, what they need here, and the command that releases them."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.slurm_lab import SlurmLab, needs_slurm
from tests.integration.slurm_servers import Gate

#: of every test in this folder
NEEDS = [
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

_numbers = itertools.count(1)


def release_command(gate: Gate, *options: str) -> list[str]:
    """Return the command that releases held jobs."""
    program = [
        sys.executable,
        "-c",
        "from memgate_service.cli.main import main; main()",
        "slurm",
        "release",
    ]
    return [*program, "--server", gate.url, "--key-file", str(gate.key_file), *options]


def release(lab: SlurmLab, gate: Gate, *options: str) -> str:
    """Run the releaser once, for real."""
    files = ("--policy", str(lab.etc / "memgate.policy.json"), "--audit-file", str(lab.spool))
    ran = lab.run(*release_command(gate, "--once", *files, *options))
    assert ran.status == 0, ran.err
    return ran.out


def never_seen(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job of about the same size that nobody has asked about."""
    return job | {"batch_size": job["batch_size"] + next(_numbers)}
