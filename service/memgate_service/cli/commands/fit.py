"""``memgate fit``: every GPU of the catalogue, and the smallest on which a job fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.contract import EngineName
from memgate.errors import InputError
from memgate.gpus import find_gpu
from memgate.jobspec import JobSpec
from memgate.report import Fit, FitEntry
from memgate_service.cli.command_questions import (
    ask_about_command,
    refuse_for_a_command,
    refuse_without_a_command,
)
from memgate_service.cli.commands.options import (
    AllocatorSettings,
    AllowWrites,
    ApiKey,
    AsJson,
    EngineChoice,
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
from memgate_service.cli.exit_status import REJECTED
from memgate_service.cli.printing import print_fit
from memgate_service.cli.reading import is_timeline, open_upload, read_spec
from memgate_service.cli.remote import connect, engine_name, with_runtime
from memgate_worker.local import (
    DEFAULT_LIMITS,
    RunLimits,
    fit_command_everywhere,
    fit_spec,
    fit_timeline,
)


def fit_command(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | -- COMMAND...",
            help="Job spec, JSON or YAML, or timeline file ('-': from stdin), or a command.",
        ),
    ],
    allocator: AllocatorSettings = "",
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
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
    """On which GPUs does this job fit? Exit status: 0 if on any, 3 if on none.

    The job runs once for each generation of GPUs, and for each kind that has about what it needs;
    GPUs that the runtime's PyTorch was not built for are unknown. A timeline file is not run: GPUs
    of another kind than the one it was recorded for are uncertain at best. A command runs in its
    own environment, as with memgate run.

    Example: memgate fit job.yaml

    Example: memgate fit -- python train.py --batch-size 64
    """
    named = engine_name(engine)
    if len(given) > 1:
        refuse_for_a_command(runtime=runtime, engine=engine, allocator=allocator)
        question = ask_about_command(
            given,
            find_gpu("a100-80"),
            no_evaluation=no_evaluation,
            longest=longest,
            limits=RunLimits(seconds=timeout),
            ignores_compile=ignore_compile,
            is_online=online,
            allows_writes=allow_writes,
            nproc=nproc,
            nnodes=nnodes,
        )
        _show(fit_command_everywhere(question, _showing(as_json)), "", as_json=as_json)
    refuse_without_a_command(longest=longest, nproc=nproc, nnodes=nnodes)
    job = Path(given[0])
    if is_timeline(job):
        if runtime or engine != "auto":
            raise InputError(f"{job} is a timeline file: leave out --engine and --runtime")
        fit = _replay(job, allocator, server, api_key, timeout, silent=as_json)
        _show(fit, server or "", as_json=as_json)
    spec = with_runtime(read_spec(job), runtime)
    if allocator:
        spec = spec.model_copy(update={"allocator": allocator})
    if server:
        with connect(server, api_key, silent=as_json) as client:
            fit = client.fit(spec, engine=named, wait=timeout)
    else:
        fit = _try_all(spec, named, timeout, silent=as_json)
    _show(fit, server or "", as_json=as_json)


def _show(fit: Fit, server: str, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(fit.model_dump_json())
    else:
        print_fit(fit, server=server)
    raise typer.Exit(REJECTED if fit.smallest is None else 0)


def _replay(
    path: Path,
    allocator: str,
    server: str | None,
    api_key: str | None,
    timeout: float,
    *,
    silent: bool,
) -> Fit:
    if allocator:
        parse_alloc_conf(allocator)
    with open_upload(path) as stream:
        if not server:
            return fit_timeline(stream, alloc_conf=allocator)
        with connect(server, api_key, silent=silent) as client:
            return client.fit(stream.read(), allocator=allocator, wait=timeout)


def _try_all(spec: JobSpec, engine: EngineName, timeout: float, *, silent: bool) -> Fit:
    limits = RunLimits(seconds=timeout)
    return fit_spec(spec, engine=engine, limits=limits, on_gpus=_showing(silent))


def _showing(silent: bool) -> Callable[[list[FitEntry]], None]:
    """Return what shows the GPUs that were tried."""
    console = Console(stderr=True, highlight=False, quiet=silent)

    def show(known: list[FitEntry]) -> None:
        console.print(f"tried {', '.join(entry.gpu for entry in known)}")

    return show
