"""``memgate pack``: all that ``memgate run`` needs, as one directory for a container."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memgate.units import format_size
from memgate_worker.packing import pack


def pack_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made by this; a new one.")],
    torch: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PLACE",
            help="An installed torch that the container has as well: its folder, or its"
            " environment. Can be given several times.",
        ),
    ] = None,
) -> None:
    """Make a directory with which memgate runs in a container, without a compiler or network.

    Example: memgate pack /opt/memgate --torch ~/job/.venv
    """
    packed = pack(directory, torch or ())
    ready = ", ".join(packed.torches) or "none: g++ is needed where it is used"
    typer.echo(f"{directory}: {format_size(packed.size_bytes)}, for Python {packed.python}")
    typer.echo(f"stand-ins for torch: {ready}")
    typer.echo(f"in the container: {packed.start} run -- COMMAND")
