"""``memgate gpus``: what a job can be asked to fit on."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.gpus import CATALOGUE
from memgate.units import format_size


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
