"""``memgate rehearse``: what a shadow of a pod runs; the result is small enough for its status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from memgate.errors import MemgateError
from memgate.gpus import GpuTarget, parse_gpu
from memgate.units import GIB
from memgate_service.admission.core.rehearsal import RehearsalResult, write_result
from memgate_service.cli.command_questions import ask_about_command
from memgate_service.cli.commands.options import HostMemory, NumProcesses, Timeout
from memgate_service.cli.reading import read_gpu
from memgate_worker.local import DEFAULT_LIMITS, RunLimits, estimate_command


def rehearse_command(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Whatever starts the job.")
    ],
    gpu: Annotated[str, typer.Option(help="A GPU of the catalogue (see: memgate gpus).")],
    result: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the result goes, JSON of at most 4 kB.")
    ] = Path("/dev/termination-log"),
    nproc: NumProcesses = None,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    host_memory: HostMemory = DEFAULT_LIMITS.memory_bytes / GIB,
) -> None:
    """Run a command once without a GPU, and write what is known of it into a small file.

    The Kubernetes gate starts it in a pod for jobs without a description. A run that fails is a
    result as well: it says why nothing is known, and the exit status is 0.

    Example: memgate rehearse --gpu t4 --result result.json -- python train.py
    """
    for name in ("HOME", "TMPDIR", "MEMGATE_CACHE_DIR"):
        if name in os.environ:
            Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    limits = RunLimits(seconds=timeout, memory_bytes=int(host_memory * GIB))
    said = _rehearse(command, parse_gpu(read_gpu(gpu)), limits, nproc)
    result.write_bytes(write_result(said))


def _rehearse(
    command: list[str], target: GpuTarget, limits: RunLimits, nproc: int | None
) -> RehearsalResult:
    try:
        question = ask_about_command(
            command,
            target.gpu,
            no_evaluation=False,
            limits=limits,
            allows_writes=True,  # what a pod writes is gone with it
            nproc=nproc if nproc and nproc > 1 else None,
        )
        estimate = estimate_command(question, target).estimate
    except MemgateError as error:
        return RehearsalResult(why=error.message)
    except OSError as error:
        return RehearsalResult(why=f"the command cannot be started: {error}")
    return RehearsalResult(
        decision=estimate.decision,
        gpu=target.gpu.name,
        needs_bytes=estimate.needs_bytes,
        why=estimate.explanation.headline,
        codes=[reason.code for reason in estimate.reasons],
    )
