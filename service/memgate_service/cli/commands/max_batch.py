"""``memgate max-batch``: the largest batch of a job that is admitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
from memgate_service.cli.printing import print_max_batch
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
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """What is the largest batch that is admitted? Exit status: 0 found, 3 not even one sample.

    The search starts from the batch size of the spec, and usually runs the job three to nine times.

    Example: memgate max-batch job.json --gpu rtx-3060
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
        print_max_batch(found, server=server or "")
    raise typer.Exit(REJECTED if found.batch_size is None else 0)


def _search(
    spec: JobSpec, gpu: object, engine: EngineName, timeout: float, *, silent: bool
) -> MaxBatch:
    console = Console(stderr=True, highlight=False, quiet=silent)

    def show(size: int, said: Estimate) -> None:
        console.print(f"tried {size}: {said.decision}, needs {format_size(said.needs_bytes)}")

    limits = RunLimits(seconds=timeout)
    return find_largest_batch(spec, parse_gpu(gpu), engine=engine, limits=limits, on_size=show)
