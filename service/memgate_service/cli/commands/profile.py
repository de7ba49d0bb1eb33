"""``memgate profile``: a training script of your own, on the CPU, into a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memgate.errors import InputError
from memgate.units import GIB, format_size
from memgate_service.cli.commands.options import HostMemory, RuntimeName, Timeout
from memgate_service.cli.progress import show_steps
from memgate_worker.local import DEFAULT_LIMITS, RunLimits, Script, profile_script


def profile_command(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="Training script (.py).")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS...]", help="Passed to the script.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="TRACE", help="Where the trace goes (.json).")
    ] = Path("trace.json"),
    steps: Annotated[
        int, typer.Option(min=1, help="Optimizer steps after which it is stopped.")
    ] = 3,
    runtime: RuntimeName = None,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    host_memory: HostMemory = DEFAULT_LIMITS.memory_bytes / GIB,
) -> None:
    """Run a training script, unchanged, on the CPU for a few steps and save what a profiler sees.

    Code that says cuda runs on the CPU instead. The trace can be analysed for any GPU.

    Example: memgate profile train.py --batch-size 4 -o trace.json
    """
    given = Script(path=script, arguments=arguments or [], num_steps=steps)
    if not output.resolve().parent.is_dir():
        raise InputError(f"{output}: there is no such folder")
    limits = RunLimits(seconds=timeout, memory_bytes=int(host_memory * GIB))
    with show_steps(script, steps, silent=False) as on_step:
        num_steps = profile_script(given, output, runtime=runtime, limits=limits, on_step=on_step)
    size = format_size(output.stat().st_size)
    typer.echo(f"{output}: {num_steps} steps of {script.name}, {size}")
    typer.echo(f"next: memgate analyze {output} --gpu GPU")
