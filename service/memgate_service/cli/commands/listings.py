"""``memgate gpus`` and ``memgate runtimes``: what a job can be asked to fit on, and run with."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.gpus import CATALOGUE
from memgate.units import format_size
from memgate_worker.runtimes.runtime import install_command, read_runtimes


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
            {
                "name": runtime.name,
                "installed": runtime.is_installed,
                "packages": runtime.bare,
                "cudnn": runtime.cudnn if runtime.has_cudnn else None,
            }
            for runtime in runtimes
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "what", "installed", "real cuDNN")
    for runtime in runtimes:
        name = runtime.name
        offered = (
            f"no: {install_command(name, with_cudnn=True)}" if runtime.cudnn else "none for it"
        )
        table.add_row(
            runtime.name,
            runtime.description,
            "yes" if runtime.is_installed else f"no: {install_command(name)}",
            "yes" if runtime.has_cudnn else offered,
        )
    Console().print(table)
