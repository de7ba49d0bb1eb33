"""``memgate run``: any training command, in its own environment, on a GPU that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from memgate.errors import InputError
from memgate.gpus import GpuTarget, parse_gpu
from memgate.timeline_file.writing import write_timeline
from memgate.units import GIB, format_size
from memgate_service.cli.answer_files import AnswerFiles
from memgate_service.cli.command_questions import ask_about_command
from memgate_service.cli.commands.options import (
    AllowWrites,
    ApiKey,
    AsJson,
    CommandSteps,
    CurveFile,
    HostMemory,
    IgnoreCompile,
    KeptFolder,
    LongestBatch,
    NoEvaluation,
    NumNodes,
    NumProcesses,
    Online,
    Picture,
    Server,
    ShowOutput,
    TimelineFile,
    Timeout,
    WatchSeconds,
    WatchUntil,
)
from memgate_service.cli.exit_status import BAD_INPUT, EXIT_STATUS
from memgate_service.cli.printing import print_what_was_seen, show_estimate
from memgate_service.cli.progress import show_stages
from memgate_service.cli.reading import read_gpu
from memgate_service.cli.remote import connect
from memgate_worker.local import (
    DEFAULT_LIMITS,
    CommandQuestion,
    LocalAnswer,
    RunLimits,
    Watch,
    estimate_command,
)

_WATCH_SECONDS = Watch().seconds

#: the GPU that a command is recorded for if the caller names none
_DEFAULT_GPU = "a100-80"


_Gpu = Annotated[
    str | None,
    typer.Option(
        help=f"A GPU of the catalogue (see: memgate gpus); without one, the job is recorded for"
        f" {_DEFAULT_GPU}, and there is no verdict."
    ),
]


def run_command(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Whatever starts the job.")
    ],
    gpu: _Gpu = None,
    nproc: NumProcesses = None,
    nnodes: NumNodes = None,
    steps: CommandSteps = None,
    until: WatchUntil = None,
    watch: WatchSeconds = _WATCH_SECONDS,
    longest: LongestBatch = None,
    no_evaluation: NoEvaluation = False,
    ignore_compile: IgnoreCompile = False,
    online: Online = False,
    keep: KeptFolder = None,
    allow_writes: AllowWrites = False,
    show_output: ShowOutput = False,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    host_memory: HostMemory = DEFAULT_LIMITS.memory_bytes / GIB,
    plot: Picture = None,
    curve: CurveFile = None,
    output: TimelineFile = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Will this command fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The command runs in its own environment, unchanged: python, torchrun, accelerate launch, a shell
    script. Its torch sees a GPU that is not there: PyTorch's own CUDA code, no kernel, no weights.

    Example: memgate run --gpu a100-80 -- python train.py --batch-size 64
    """
    if server and gpu is None:
        raise InputError("--server gives a verdict, which needs a GPU: name one with --gpu")
    target = parse_gpu(read_gpu(gpu or _DEFAULT_GPU))
    files = AnswerFiles.prepare(plot=plot, curve=curve, output=output)
    question = ask_about_command(
        command,
        target.gpu,
        watch=Watch(steps=steps, until=until, seconds=watch),
        no_evaluation=no_evaluation,
        longest=longest,
        limits=RunLimits(seconds=timeout, memory_bytes=int(host_memory * GIB)),
        ignores_compile=ignore_compile,
        is_online=online,
        keep=keep,
        allows_writes=allow_writes,
        nproc=nproc,
        nnodes=nnodes,
    )
    found = _run(question, target, silent=as_json, shows_output=show_output)
    files.write(found, target, title=" ".join(command), command=command)
    if gpu is None:
        _show_the_need(found, target, as_json=as_json)
        raise typer.Exit(0 if output is not None else BAD_INPUT)
    answer = found.estimate
    if server:
        content = write_timeline(found.record(target.gpu, command))
        with connect(server, api_key, silent=as_json) as client:
            answer = client.estimate(content, read_gpu(gpu), wait=timeout)
    show_estimate(answer, as_json=as_json, server=server or "")
    raise typer.Exit(EXIT_STATUS[answer.decision])


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
    print_what_was_seen(found.estimate)
