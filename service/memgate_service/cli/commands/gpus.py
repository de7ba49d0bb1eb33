"""``memgate gpus``: what a job can be asked to fit on."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.gpus import GpuSpec, describe_machine, find_gpu, find_reports, list_gpus, list_machines
from memgate.schemas import GpuRead
from memgate.units import format_size


def gpus_command(
    name: Annotated[
        str | None, typer.Argument(help="Show only this GPU, with the machines that have it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the GPUs that a job can be asked to fit on.

    The smallest is first. The memory is what answers use: the lowest total that was reported. ECC,
    the driver and the operating system change it; the highest report and the source are next to it.
    A GPU can also be named by a cloud's machine type.

    Example: memgate gpus p4d.24xlarge
    """
    if as_json:
        found = list_gpus() if name is None else [find_gpu(name)]
        typer.echo(json.dumps([GpuRead.of(gpu).model_dump() for gpu in found]))
    elif name is None:
        _print_all(list_gpus())
    else:
        _print_one(name)


def _print_all(gpus: list[GpuSpec]) -> None:
    sources = {source: number for number, source in enumerate(_find_sources(gpus), start=1)}
    table = Table()
    table.add_column("name", no_wrap=True)
    table.add_column("product", overflow="fold")
    for title in ("memory", "up to", "cc", "source"):
        table.add_column(title, no_wrap=True, justify="right")
    for gpu in gpus:
        reports = find_reports(gpu)
        sizes = format_size(gpu.memory_bytes), format_size(reports.highest_bytes)
        source = str(sources[reports.source])
        table.add_row(gpu.name, gpu.product, *sizes, gpu.capability, source)
    console = Console(highlight=False)
    console.print(table)
    console.print("memory: what answers use; up to: the highest that was reported; source:")
    for source, number in sources.items():
        console.print(f"{number}: {source}", markup=False)


def _find_sources(gpus: list[GpuSpec]) -> list[str]:
    return list(dict.fromkeys(find_reports(gpu).source for gpu in gpus))


def _print_one(name: str) -> None:
    gpu = find_gpu(name)
    if note := describe_machine(name):
        typer.echo(note)
    typer.echo(f"{gpu.name}: {gpu.product}, {format_size(gpu.memory_bytes)}")
    typer.echo(
        f"compute capability {gpu.capability}, {gpu.multiprocessors} multiprocessors; memory"
        f" reported: {describe_range(gpu)} ({find_reports(gpu).source})"
    )
    if machines := list_machines(gpu.name):
        typer.echo(f"machines: {', '.join(machines)}")


def describe_range(gpu: GpuSpec) -> str:
    """Write the lowest and the highest memory that was reported."""
    reports = find_reports(gpu)
    lowest, highest = format_size(reports.lowest_bytes), format_size(reports.highest_bytes)
    return lowest if lowest == highest else f"{lowest.removesuffix(' GiB')} to {highest}"
