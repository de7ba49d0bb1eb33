"""What Slurm's prolog calls. Nothing here fails: Slurm would drain the node.

Every job with a GPU waits for this, so as little as possible is imported.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from memgate_service.admission.slurm.measuring.nvml import NvmlError, try_nvml
from memgate_service.admission.slurm.measuring.peaks import (
    Places,
    begin,
    make_directory,
    read_gpus,
    watch,
)

_MAIN = "from memgate_service.cli.main import main; main()"


def begin_job(variables: Mapping[str, str], directory: Path, log: Callable[[str], None]) -> None:
    """Begin to measure a job, in its prolog."""
    gpus = read_gpus(variables)
    if not gpus:
        return
    try:
        job = int(variables["SLURM_JOB_ID"])
        places = Places(make_directory(directory), job)
        with try_nvml() as (devices, problem):
            begun = begin(places, job, gpus, devices, problem)
        if begun.problem:
            log(f"job {job}: its GPU memory is not measured: {begun.problem}")
        elif begun.before_bytes:
            _start_watching(job, directory)
    except (OSError, KeyError, ValueError, NvmlError) as error:
        log(f"its GPU memory is not measured: {error}")


def _start_watching(job: int, directory: Path) -> None:
    """Start the program that looks; in a session of its own, since Slurm ends the prolog's."""
    command = [sys.executable, "-I", "-c", _MAIN, "slurm", "watch", str(job)]
    subprocess.Popen(
        [*command, "--directory", str(directory)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )


def watch_job(job: int, directory: Path) -> None:
    """Look at the GPUs of a job until it ends."""
    with try_nvml() as (devices, problem):
        if not problem:
            watch(Places(directory, job), devices)
