"""``memgate run``: any training command, in its own environment, on a GPU that is not there."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.gpus import GpuTarget, parse_gpu
from memgate.timeline_file.recorded import RecordedTimeline
from memgate.timeline_file.writing import write_timeline
from memgate.units import GIB, format_size
from memgate_service.cli.commands.options import (
    AllowWrites,
    ApiKey,
    AsJson,
    CommandSteps,
    CurveFile,
    HostMemory,
    IgnoreCompile,
    NoEvaluation,
    Online,
    Picture,
    Server,
    Timeout,
)
from memgate_service.cli.curves import prepare_curve, write_timeline_curve
from memgate_service.cli.exit_status import BAD_INPUT, EXIT_STATUS
from memgate_service.cli.plots import plot_timeline, prepare_picture
from memgate_service.cli.printing import show_estimate
from memgate_service.cli.progress import show_stages
from memgate_service.cli.reading import read_gpu
from memgate_service.cli.remote import connect
from memgate_service.cli.timelines import prepare_timeline, save_timeline
from memgate_worker.local import (
    DEFAULT_LIMITS,
    CommandQuestion,
    LocalAnswer,
    RunLimits,
    Watch,
    estimate_command,
)

#: the GPU that a command is recorded for if the caller names none
_DEFAULT_GPU = "a100-80"


class Until(StrEnum):
    """How far a job is watched."""

    EVALUATION = "evaluation"
    END = "end"


def run_command(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Whatever starts the job.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            help=f"A GPU of the catalogue (see: memgate gpus); without one, the job is recorded"
            f" for {_DEFAULT_GPU}, and there is no verdict."
        ),
    ] = None,
    steps: CommandSteps = None,
    until: Annotated[
        Until | None, typer.Option(help="Go on until there was an evaluation, or to the end.")
    ] = None,
    watch: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long to wait for an evaluation after the first training steps.",
        ),
    ] = Watch().seconds,
    no_evaluation: NoEvaluation = False,
    ignore_compile: IgnoreCompile = False,
    online: Online = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep what the job wrote, in a new folder."),
    ] = None,
    allow_writes: AllowWrites = False,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show what the command prints, on stderr.")
    ] = False,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    host_memory: HostMemory = DEFAULT_LIMITS.memory_bytes / GIB,
    plot: Picture = None,
    curve: CurveFile = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Keep the run as a timeline file."),
    ] = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Will this command fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The command runs in its own environment, unchanged: python, torchrun, accelerate launch, a shell
    script. Its torch sees a GPU that is not there: PyTorch's own CUDA code, no kernel, no weights.

    Example: memgate run --gpu a100-80 -- python train.py --batch-size 64
    """
    target = parse_gpu(read_gpu(gpu or _DEFAULT_GPU))
    files = _Files.prepare(plot=plot, curve=curve, output=output)
    question = CommandQuestion(
        command=tuple(command),
        directory=Path.cwd(),
        environment=os.environ,
        gpu=target.gpu,
        watch=Watch(steps=steps, until=until, seconds=0.0 if no_evaluation else watch),
        limits=RunLimits(seconds=timeout, memory_bytes=int(host_memory * GIB)),
        ignores_compile=ignore_compile,
        is_online=online,
        keep=keep,
        allows_writes=allow_writes,
        has_no_evaluation=no_evaluation,
    )
    found = _run(question, target, silent=as_json, shows_output=show_output)
    recorded = found.record(target.gpu, command)
    files.write(found, recorded, target)
    if gpu is None:
        _show_the_need(found, target, as_json=as_json)
        raise typer.Exit(0 if output is not None else BAD_INPUT)
    answer = found.estimate
    if server:
        with connect(server, api_key, silent=as_json) as client:
            answer = client.estimate(write_timeline(recorded), read_gpu(gpu), wait=timeout)
    show_estimate(answer, as_json=as_json, server=server or "")
    raise typer.Exit(EXIT_STATUS[answer.decision])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What is written beside the answer; each is a new file."""

    picture: Path | None
    curve: Path | None
    timeline: Path | None

    @classmethod
    def prepare(cls, *, plot: Path | None, curve: Path | None, output: Path | None) -> _Files:
        """Make sure that they can be written before the command is run."""
        return cls(
            picture=prepare_picture(plot) if plot is not None else None,
            curve=prepare_curve(curve) if curve is not None else None,
            timeline=prepare_timeline(output) if output is not None else None,
        )

    def write(self, found: LocalAnswer, recorded: RecordedTimeline, target: GpuTarget) -> None:
        """Write those that are wanted."""
        config = parse_alloc_conf(found.alloc_conf)
        if self.picture is not None:
            title = " ".join(recorded.command)
            plot_timeline(found.timeline, config, target, title=title, path=self.picture)
        if self.curve is not None:
            write_timeline_curve(found.timeline, config, target, path=self.curve)
        if self.timeline is not None:
            save_timeline(recorded, self.timeline)


def _run(
    question: CommandQuestion, target: GpuTarget, *, silent: bool, shows_output: bool
) -> LocalAnswer:
    name = Path(question.command[0]).name
    output = sys.stderr.buffer if shows_output else None
    with show_stages(name, silent=silent or shows_output) as on_progress:
        return estimate_command(question, target, output=output, on_progress=on_progress)


def _show_the_need(found: LocalAnswer, target: GpuTarget, *, as_json: bool) -> None:
    """Without a GPU in the question there is a need, and no verdict."""
    if as_json:
        typer.echo(found.estimate.model_dump_json(exclude={"decision", "explanation"}))
        return
    needs = format_size(found.estimate.needs_bytes)
    typer.echo(
        f"it needs {needs}, recorded for {target.gpu.name}; no GPU was named, so there is no"
        " verdict: name one with --gpu (see: memgate gpus)"
    )
