"""``memgate estimate``, ``gpus`` and ``runtimes``: one job, in this process, no server."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from memgate.errors import InputError
from memgate.gpus import CATALOGUE, find_gpu
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.pipeline import estimate
from memgate.report import Estimate, Reason
from memgate.units import format_size
from worker.engines.phantom.engine import PhantomEngine
from worker.runtime import find_runtime, read_runtimes

#: of the contract: other programs look at it
EXIT_STATUS = {"admit": 0, "reject": 3, "uncertain": 4}


def estimate_command(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Job spec, JSON or YAML. '-': from stdin.")
    ],
    gpu: Annotated[str, typer.Option(help="A GPU of the catalogue; see: memgate gpus.")],
    engine: Annotated[str, typer.Option(help="auto or phantom.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Will this job fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The job runs on a GPU that is not there: PyTorch's own CUDA code, no kernel, no weights.

    Example: memgate estimate deploy/examples/resnet50.json --gpu rtx-3060
    """
    if engine not in ("auto", "phantom"):
        raise InputError(f"engine {engine!r} is unknown; there are: auto, phantom")
    job = _read_spec(spec)
    wanted = find_gpu(gpu)
    start = time.perf_counter()
    with PhantomEngine(find_runtime(job.runtime)) as phantom:
        traced = phantom.trace(job, wanted)
    traced_at = time.perf_counter()
    answer = estimate(
        traced.timeline,
        wanted,
        alloc_conf=job.allocator,
        engine="phantom",
        runtime=traced.runtime,
        versions=traced.versions,
    )
    if traced.num_data_sized_results:
        answer = answer.model_copy(update={"reasons": [*answer.reasons, _DATA_DEPENDENT]})
    now = time.perf_counter()
    timings = {"trace": traced_at - start, "replay": now - traced_at, "total": now - start}
    answer = answer.model_copy(
        update={"timings_ms": {name: round(value * 1000) for name, value in timings.items()}}
    )
    if as_json:
        typer.echo(answer.model_dump_json())
    else:
        _print(answer)
    raise typer.Exit(EXIT_STATUS[answer.decision])


_DATA_DEPENDENT = Reason(
    code="SIZES_DEPEND_ON_DATA",
    message="the job makes tensors whose size depends on data (nonzero, unique, boolean masks);"
    " there is no data here, so the true figure may differ",
)


def _read_spec(path: Path) -> JobSpec:
    try:
        text = sys.stdin.read() if path == Path("-") else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    try:
        return parse_job_spec(yaml.safe_load(text))
    except yaml.YAMLError as error:
        place = str(getattr(error, "problem_mark", "")).strip()
        raise InputError(f"{path}: neither JSON nor YAML {place}") from None
    except InputError as error:
        raise InputError(f"{path}: {error.message}") from None


def _print(answer: Estimate) -> None:
    console = Console(highlight=False)
    reason, *others = answer.reasons
    colour = {"admit": "green", "reject": "red", "uncertain": "yellow"}[answer.decision]
    console.print(f"[bold {colour}]{answer.decision}[/]: {reason.message}")
    for other in others:
        console.print(f"note: {other.message}")
    table = Table("at the peak", "", title_justify="left")
    for name, size in sorted(answer.breakdown.items(), key=lambda item: -item[1]):
        if size:
            table.add_row(name.replace("_", " "), format_size(size))
    table.add_section()
    table.add_row("peak, as the driver shows it", format_size(answer.peak_bytes))
    table.add_row("least in which it runs", format_size(answer.required_bytes))
    console.print(table)
    if answer.oom is not None:
        console.print(f"PyTorch would say: {answer.oom.message}")
    console.print(f"fits on: {', '.join(answer.fits_on) or 'no GPU of the catalogue'}")
    console.print(f"{answer.runtime}, {answer.timings_ms['total'] / 1000:.1f} s")


def gpus_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the GPUs that a job can be asked to fit on."""
    rows = [
        {
            "name": gpu.name,
            "product": gpu.product,
            "memory_bytes": gpu.memory_bytes,
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
            "multiprocessors": gpu.multiprocessors,
        }
        for gpu in CATALOGUE.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "product", "memory", "compute capability")
    for gpu in CATALOGUE.values():
        capability = ".".join(map(str, gpu.compute_capability))
        table.add_row(gpu.name, gpu.product, format_size(gpu.memory_bytes), capability)
    Console().print(table)


def runtimes_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the library versions that jobs can be run with, and which are installed."""
    runtimes = read_runtimes().values()
    if as_json:
        rows = [
            {"name": runtime.name, "installed": runtime.is_installed, "packages": runtime.bare}
            for runtime in runtimes
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "what", "installed")
    for runtime in runtimes:
        command = f"make runtime RUNTIME={runtime.name}"
        table.add_row(
            runtime.name, runtime.description, "yes" if runtime.is_installed else f"no: {command}"
        )
    Console().print(table)
