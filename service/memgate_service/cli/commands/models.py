"""``memgate models``: the public models that a job spec can name."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memgate.errors import InputError
from memgate.mistakes import suggest
from memgate.units import format_count
from memgate_worker.jobs.public import PublicModel, find_near_models, list_public_models


def models_command(
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only names with this in them, in any case.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the public models that a job spec can name.

    Each stands for a class of transformers or diffusers and a configuration: nothing is downloaded.
    torchvision and timm have lists of their own.

    Example: memgate models qwen2.5
    """
    found = [model for model in list_public_models() if text.lower() in model.name.lower()]
    if as_json:
        typer.echo(json.dumps([_as_row(model) for model in found]))
        return
    if not found:
        step = suggest(find_near_models(text))
        raise InputError(f"no public model has {text!r} in its name" + (step and f"; {step}"))
    table = Table("name", "class", "parameters")
    for model in found:
        table.add_row(model.name, model.class_name, format_count(model.num_parameters))
    Console().print(table)


def _as_row(model: PublicModel) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "class": model.class_name,
        "config": model.config,
        "parameters": model.num_parameters,
        "sources": model.sources,
    }
