"""``memgate max-batch``: the largest batch of a job that is admitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.contract import EngineName
from memgate.gpus import parse_gpu
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch
from memgate.report import Estimate
from memgate.units import format_size
from memgate_service.cli.commands.options import (
    ApiKey,
    AsJson,
    EngineChoice,
    Gpu,
    RuntimeName,
    Server,
    Timeout,
)
from memgate_service.cli.exit_status import REJECTED
from memgate_service.cli.reading import read_gpu, read_spec
from memgate_service.cli.remote import connect, engine_name, with_runtime
from memgate_worker.local import DEFAULT_LIMITS, RunLimits, find_largest_batch


def max_batch_command(
    job: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Job spec, JSON or YAML ('-': from stdin).")
    ],
    gpu: Gpu,
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
    timeout: Timeout = DEFAULT_LIMITS.timeout_seconds,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """What is the largest batch that is admitted? Exit status: 0 found, 3 not even one sample.

    The search starts from the batch size of the spec, and usually runs the job three to nine times.

    Example: memgate max-batch deploy/examples/resnet50.json --gpu rtx-3060
    """
    named = engine_name(engine)
    spec = with_runtime(read_spec(job), runtime)
    document = read_gpu(gpu)
    if server:
        with connect(server, api_key, silent=as_json) as client:
            found = client.max_batch(spec, document, engine=named, wait=timeout)
    else:
        found = _search(spec, document, named, timeout, silent=as_json)
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        _print(found, gpu)
    raise typer.Exit(REJECTED if found.batch_size is None else 0)


def _search(
    spec: JobSpec, gpu: object, engine: EngineName, timeout: float, *, silent: bool
) -> MaxBatch:
    console = Console(stderr=True, highlight=False, quiet=silent)

    def show(size: int, said: Estimate) -> None:
        needs = format_size(said.upper_bound_bytes)
        console.print(f"tried {size}: {said.decision}, needs up to {needs}")

    limits = RunLimits(timeout_seconds=timeout)
    return find_largest_batch(spec, parse_gpu(gpu), engine=engine, limits=limits, on_size=show)


def _print(found: MaxBatch, gpu: str) -> None:
    console = Console(highlight=False)
    if found.batch_size is None or found.estimate is None:
        least = format_size(found.tried[0].upper_bound_bytes)
        console.print(
            f"[bold red]none[/]: not even a batch of one is admitted on {gpu}, which needs up to"
            f" {least}"
        )
    else:
        reason = found.estimate.reasons[0].message
        console.print(f"[bold green]{found.batch_size}[/]: {reason}")
    if not found.is_monotone:
        console.print(
            "note: a larger batch does not always need more here, so a larger one than this may be"
            " admitted, too"
        )
    table = Table("batch size", "decision", "needs up to")
    for tried in found.tried:
        size = format_size(tried.upper_bound_bytes)
        table.add_row(str(tried.batch_size), tried.decision, size)
    console.print(table)
