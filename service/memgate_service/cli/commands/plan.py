"""``memgate plan``: the fewest GPUs that a job fits on, and the cheapest way to divide it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from memgate.errors import InputError
from memgate.gpu_plan import GpuCounts
from memgate.gpus import GpuTarget, parse_gpu
from memgate.jobspec import JobSpec
from memgate.report import Estimate
from memgate.units import format_size
from memgate_service.cli.commands.options import AsJson, RuntimeName, Timeout
from memgate_service.cli.exit_status import REJECTED
from memgate_service.cli.printing import print_plan
from memgate_service.cli.reading import read_gpu, read_spec
from memgate_worker.local import DEFAULT_LIMITS, RunLimits, plan_spec

#: a name or a description, a colon, one number or two
_GPUS = re.compile(r"(?P<gpu>.+):(?P<low>\d+)(?:-(?P<high>\d+))?")

#: no job has more
_MAX_GPUS = 4096


def plan_command(
    spec: Annotated[
        Path, typer.Argument(help="Job spec, JSON or YAML ('-': from stdin).", show_default=False)
    ],
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus", metavar="GPU:LOW-HIGH", help="Which GPU, and how many of them there may be."
        ),
    ],
    runtime: RuntimeName = None,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    as_json: AsJson = False,
) -> None:
    """How many GPUs does a job need, and how should it be divided? Exit status: 0 found, 3 none.

    Ways are tried in the order of what they cost: one GPU, DDP, ZeRO-1, FSDP, with checkpointing,
    with offload. Each line was run. The batch size is that of one GPU.

    Example: memgate plan job.json --gpus h100-80:1-64
    """
    target, counts = _read_gpus(gpus)
    console = Console(stderr=True, highlight=False, quiet=as_json)

    def show(job: JobSpec, said: Estimate) -> None:
        divided = job.distributed
        how = "one GPU" if divided is None else f"{divided.strategy} on {divided.world_size}"
        how += " with checkpointing" if job.gradient_checkpointing else ""
        how += " and offload" if divided is not None and divided.cpu_offload else ""
        needs = format_size(said.needs_bytes)
        console.print(f"tried {how}: {said.decision}, needs {needs}", markup=False)

    limits = RunLimits(seconds=timeout)
    plan = plan_spec(read_spec(spec), target, counts, runtime=runtime, limits=limits, on_said=show)
    if as_json:
        typer.echo(plan.model_dump_json())
    else:
        print_plan(plan)
    if plan.fewest_gpus is None:
        raise typer.Exit(REJECTED)


def _read_gpus(text: str) -> tuple[GpuTarget, GpuCounts]:
    found = _GPUS.fullmatch(text)
    if found is None:
        raise InputError(f"--gpus is {text!r}: give a GPU and how many, such as h100-80:1-64")
    low, high = int(found["low"]), int(found["high"] or found["low"])
    if high < low:
        raise InputError(
            f"--gpus is {text!r}: the smaller number comes first; write {found['gpu']}:{high}-{low}"
        )
    if not 1 <= low <= high <= _MAX_GPUS:
        raise InputError(f"--gpus is {text!r}: give two numbers from 1 to {_MAX_GPUS}, as 1-64")
    return parse_gpu(read_gpu(found["gpu"])), GpuCounts(low, high)
