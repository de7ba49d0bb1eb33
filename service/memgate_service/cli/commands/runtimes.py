"""``memgate runtimes``: the library versions that jobs run with; list, install, remove."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from memgate.units import format_size
from memgate_service.cli.commands.options import AsJson
from memgate_worker.runtimes.install import Report, disk_bytes, install, remove
from memgate_worker.runtimes.runtime import (
    DEFAULT_RUNTIME,
    Runtime,
    RuntimeState,
    install_command,
    named_runtime,
    read_runtimes,
)

runtimes_app = typer.Typer(
    name="runtimes",
    help="List, install or remove the library versions that jobs are run with. To add one of your"
    " own, put a file NAME.toml with its versions into MEMGATE_RUNTIMES_DIR and install it.",
    invoke_without_command=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `memgate runtimes list` shows it.")]


@runtimes_app.callback()
def runtimes_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List the library versions that jobs can be run with, unless another command is named."""
    if context.invoked_subcommand is None:
        list_command(as_json=as_json)


@runtimes_app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the library versions that jobs can be run with, and which are installed."""
    runtimes = read_runtimes().values()
    if as_json:
        typer.echo(json.dumps([_row(runtime) for runtime in runtimes]))
        return
    console = Console(highlight=False)
    table = Table("name", "what", "installed", "real cuDNN")
    for runtime in runtimes:
        table.add_row(runtime.name, runtime.description, _INSTALLED[runtime.state], _cudnn(runtime))
    console.print(table)
    for runtime in runtimes:
        if not runtime.is_installed:
            console.print(
                f"install {runtime.name}: {install_command(runtime.name)}", soft_wrap=True
            )
        elif runtime.cudnn and not runtime.has_cudnn:
            command = install_command(runtime.name, with_cudnn=True)
            console.print(f"add the real cuDNN to {runtime.name}: {command}", soft_wrap=True)


_INSTALLED = {
    RuntimeState.INSTALLED: "yes",
    RuntimeState.ABSENT: "no",
    RuntimeState.UNFINISHED: "not completely",
    RuntimeState.OUTDATED: "by another version of memgate",
}


def _cudnn(runtime: Runtime) -> str:
    return "yes" if runtime.has_cudnn else "no" if runtime.cudnn else "none for it"


def _row(runtime: Runtime) -> dict[str, object]:
    return {
        "name": runtime.name,
        "installed": runtime.is_installed,
        "state": runtime.state,
        "packages": runtime.bare,
        "cudnn": runtime.cudnn if runtime.has_cudnn else None,
        "home": str(runtime.home),
    }


@runtimes_app.command("install")
def install_runtime_command(
    name: Name = DEFAULT_RUNTIME,
    with_cudnn: Annotated[
        bool,
        typer.Option(
            "--with-cudnn",
            help="Also the real cuDNN, for the workspaces of convolutions: 0.8 GB to download,"
            " NVIDIA's own package under its own licence.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Install a runtime, or bring it up to date; does nothing if it already is.

    It goes to MEMGATE_RUNTIMES_DIR, or the data folder of this user. The first time it downloads
    torch, without NVIDIA's packages. Needs g++.

    Example: memgate runtimes install torch-2.14
    """
    runtime = named_runtime(name)
    with _shown(runtime, silent=as_json) as report:
        if runtime.state is RuntimeState.ABSENT and runtime.disk_bytes:
            size = format_size(runtime.disk_bytes)
            report(f"takes {size} in {runtime.home}, and a few minutes the first time")
        done = install(runtime, with_cudnn=with_cudnn, report=report)
    if as_json:
        said = {"changed": done.changed, "seconds": round(done.seconds, 1)}
        typer.echo(json.dumps(_row(runtime) | said | {"disk_bytes": disk_bytes(runtime)}))
    elif done.changed:
        size = format_size(disk_bytes(runtime))
        typer.echo(f"{runtime.name} is ready after {done.seconds:.0f} s: {size} in {runtime.home}")
    else:
        typer.echo(f"{runtime.name} is installed and up to date in {runtime.home}")


@runtimes_app.command("remove")
def remove_runtime_command(name: Name) -> None:
    """Remove a runtime, or what an interrupted installation left of it.

    Example: memgate runtimes remove torch-2.6
    """
    runtime = named_runtime(name)
    with _shown(runtime, silent=False) as report:
        freed = remove(runtime, report=report)
    if freed:
        typer.echo(
            f"{runtime.name} is removed: {format_size(freed)} freed in {runtime.home.parent}"
        )
    else:
        typer.echo(f"{runtime.name} is not installed in {runtime.home.parent}")


@contextmanager
def _shown(runtime: Runtime, *, silent: bool) -> Iterator[Report]:
    """Show progress: a line for each step, and how long the current one has taken so far."""
    console = Console(stderr=True, highlight=False, quiet=silent)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as shown:
        task = shown.add_task(runtime.name)

        def report(text: str) -> None:
            console.print(f"{runtime.name}: {text}", soft_wrap=True, markup=False)
            shown.reset(task, description=text)

        yield report
