"""``memgate max-batch``: the largest batch of a job that is admitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from memgate.contract import EngineName
from memgate.gpus import parse_gpu
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch
from memgate.report import Estimate
from memgate.units import format_size
from memgate_service.cli.command_questions import (
    ask_about_command,
    refuse_for_a_command,
    refuse_without_a_command,
)
from memgate_service.cli.commands.options import (
    AllowWrites,
    ApiKey,
    AsJson,
    EngineChoice,
    Gpu,
    IgnoreCompile,
    LongestBatch,
    NoEvaluation,
    NumNodes,
    NumProcesses,
    Online,
    RuntimeName,
    Server,
    Timeout,
)
from memgate_service.cli.exit_status import EXIT_STATUS, REJECTED
from memgate_service.cli.printing import print_max_batch
from memgate_service.cli.reading import read_gpu, read_spec
from memgate_service.cli.remote import connect, engine_name, with_runtime
from memgate_worker.local import (
    DEFAULT_LIMITS,
    PLACE,
    RunLimits,
    find_largest_batch,
    find_largest_batch_of,
)


def max_batch_command(
    job: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC | -- COMMAND...",
            help="Job spec, JSON or YAML ('-': from stdin), or a command with {batch} in it.",
        ),
    ],
    gpu: Gpu,
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
    start: Annotated[int, typer.Option(min=1, help="The batch size of a command's first run.")] = 2,
    nproc: NumProcesses = None,
    nnodes: NumNodes = None,
    longest: LongestBatch = None,
    no_evaluation: NoEvaluation = False,
    ignore_compile: IgnoreCompile = False,
    online: Online = False,
    allow_writes: AllowWrites = False,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """What is the largest batch that is admitted? Exit status: 0 found, 3 not even one sample.

    The search starts from the batch size of the spec, and usually runs the job three to nine times.
    A command is run at two small sizes, and at the largest; exit status 4: that one is in doubt.

    Example: memgate max-batch job.json --gpu rtx-3060

    Example: memgate max-batch --gpu a100-80 -- python train.py --batch-size {batch}
    """
    named = engine_name(engine)
    document = read_gpu(gpu)
    if len(job) > 1 or PLACE in job[0]:
        refuse_for_a_command(runtime=runtime, engine=engine)
        target = parse_gpu(document)
        question = ask_about_command(
            job,
            target.gpu,
            no_evaluation=no_evaluation,
            longest=longest,
            limits=RunLimits(seconds=timeout),
            ignores_compile=ignore_compile,
            is_online=online,
            allows_writes=allow_writes,
            nproc=nproc,
            nnodes=nnodes,
        )
        found = find_largest_batch_of(question, target, start=start, on_size=_showing(as_json))
        _show(found, "", as_json=as_json)
    refuse_without_a_command(longest=longest, nproc=nproc, nnodes=nnodes)
    spec = with_runtime(read_spec(Path(job[0])), runtime)
    if server:
        with connect(server, api_key, silent=as_json) as client:
            found = client.max_batch(spec, document, engine=named, wait=timeout)
    else:
        found = _search(spec, document, named, timeout, silent=as_json)
    _show(found, server or "", as_json=as_json)


def _show(found: MaxBatch, server: str, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        print_max_batch(found, server=server)
    if found.estimate is None:
        raise typer.Exit(REJECTED)
    raise typer.Exit(EXIT_STATUS[found.estimate.decision])


def _search(
    spec: JobSpec, gpu: object, engine: EngineName, timeout: float, *, silent: bool
) -> MaxBatch:
    limits = RunLimits(seconds=timeout)
    show = _showing(silent)
    return find_largest_batch(spec, parse_gpu(gpu), engine=engine, limits=limits, on_size=show)


def _showing(silent: bool) -> Callable[[int, Estimate], None]:
    """Return what shows each size that was tried."""
    console = Console(stderr=True, highlight=False, quiet=silent)

    def show(size: int, said: Estimate) -> None:
        console.print(f"tried {size}: {said.decision}, needs {format_size(said.needs_bytes)}")

    return show
