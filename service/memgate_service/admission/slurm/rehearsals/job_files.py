"""Slurm's own record of a job -> its script and its variables, as they were submitted.

In the directory ``StateSaveLocation`` of the controller, which SlurmUser and root may read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from memgate_service.admission.slurm.commands import SlurmError, run

#: directories over which Slurm spreads its jobs
_NUM_DIRECTORIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """What a job runs, and with which variables."""

    script: str
    environment: dict[str, str]


def find_state() -> Path:
    """Ask Slurm where it keeps its jobs.

    Raises:
        SlurmError: if it does not say.
    """
    found = re.search(r"^StateSaveLocation\s*= (.+)$", run(["scontrol", "show", "config"]), re.M)
    if found is None:
        raise SlurmError("scontrol show config names no StateSaveLocation")
    return Path(found[1])


def read_files(state: Path, job_id: int) -> JobFiles:
    """Read a job's files.

    Raises:
        SlurmError: if they cannot be read.
    """
    directory = state / f"hash.{job_id % _NUM_DIRECTORIES}" / f"job.{job_id}"
    try:
        script = (directory / "script").read_bytes()
        variables = (directory / "environment").read_bytes()
    except OSError as error:
        raise SlurmError(f"job {job_id}: its script cannot be read: {error}") from None
    # a number of four bytes comes first
    entries = variables[4:].decode(errors="surrogateescape").split("\0")
    return JobFiles(
        script=script.rstrip(b"\0").decode(errors="replace"),
        environment=dict(entry.split("=", 1) for entry in entries if "=" in entry),
    )
