"""``memgate fit``: every GPU of the catalogue, and the smallest on which a job fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from memgate.contract import EngineName
from memgate.jobspec import JobSpec
from memgate.report import Fit, FitEntry
from memgate_service.cli.commands.options import (
    ApiKey,
    AsJson,
    EngineChoice,
    RuntimeName,
    Server,
    Timeout,
)
from memgate_service.cli.exit_status import REJECTED
from memgate_service.cli.printing import print_fit
from memgate_service.cli.reading import read_spec
from memgate_service.cli.remote import connect, engine_name, with_runtime
from memgate_worker.local import DEFAULT_LIMITS, RunLimits, fit_spec


def fit_command(
    job: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Job spec, JSON or YAML ('-': from stdin).")
    ],
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """On which GPUs does this job fit? Exit status: 0 if on any, 3 if on none.

    The job runs once for each compute capability and number of multiprocessors; GPUs that the
    runtime's PyTorch was not built for are unknown.

    Example: memgate fit job.yaml
    """
    named = engine_name(engine)
    spec = with_runtime(read_spec(job), runtime)
    if server:
        with connect(server, api_key, silent=as_json) as client:
            fit = client.fit(spec, engine=named, wait=timeout)
    else:
        fit = _try_all(spec, named, timeout, silent=as_json)
    if as_json:
        typer.echo(fit.model_dump_json())
    else:
        print_fit(fit, server=server or "")
    raise typer.Exit(REJECTED if fit.smallest is None else 0)


def _try_all(spec: JobSpec, engine: EngineName, timeout: float, *, silent: bool) -> Fit:
    console = Console(stderr=True, highlight=False, quiet=silent)

    def show(known: list[FitEntry]) -> None:
        console.print(f"tried {', '.join(entry.gpu for entry in known)}")

    return fit_spec(spec, engine=engine, limits=RunLimits(seconds=timeout), on_gpus=show)
