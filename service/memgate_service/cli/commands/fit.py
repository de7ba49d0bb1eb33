"""``memgate fit``: every GPU of the catalogue, and the smallest on which a job fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.contract import EngineName
from memgate.errors import InputError
from memgate.jobspec import JobSpec
from memgate.report import Fit, FitEntry
from memgate_service.cli.commands.options import (
    AllocatorSettings,
    ApiKey,
    AsJson,
    EngineChoice,
    RuntimeName,
    Server,
    Timeout,
)
from memgate_service.cli.exit_status import REJECTED
from memgate_service.cli.printing import print_fit
from memgate_service.cli.reading import is_timeline, open_upload, read_spec
from memgate_service.cli.remote import connect, engine_name, with_runtime
from memgate_worker.local import DEFAULT_LIMITS, RunLimits, fit_spec, fit_timeline


def fit_command(
    job: Annotated[
        Path,
        typer.Argument(
            metavar="JOB", help="Job spec, JSON or YAML, or timeline file ('-': from stdin)."
        ),
    ],
    allocator: AllocatorSettings = "",
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """On which GPUs does this job fit? Exit status: 0 if on any, 3 if on none.

    The job runs once for each compute capability and number of multiprocessors; GPUs that the
    runtime's PyTorch was not built for are unknown. A timeline file is not run: GPUs of another
    kind than the one it was recorded for are uncertain at best.

    Example: memgate fit job.yaml
    """
    named = engine_name(engine)
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
    console = Console(stderr=True, highlight=False, quiet=silent)

    def show(known: list[FitEntry]) -> None:
        console.print(f"tried {', '.join(entry.gpu for entry in known)}")

    return fit_spec(spec, engine=engine, limits=RunLimits(seconds=timeout), on_gpus=show)
