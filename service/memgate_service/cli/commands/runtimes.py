"""``memgate runtimes``: the library versions that jobs run with; list, install, remove."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from memgate.errors import InputError
from memgate.units import format_size
from memgate_service.cli.commands.options import AsJson
from memgate_worker.runtimes.contents import read_contents
from memgate_worker.runtimes.install import (
    Installation,
    install,
    plan_requirements,
    remove,
)
from memgate_worker.runtimes.runtime import (
    Runtime,
    RuntimeState,
    install_command,
    named_runtime,
    read_runtimes,
)

runtimes_app = typer.Typer(
    name="runtimes",
    help="List, install or remove the library versions that jobs are run with. To add one of your"
    " own: memgate runtimes install --requirements FILE.",
    invoke_without_command=True,
)


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
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in (
        "name",
        "torch",
        "installed",
        "Python",
        "packages",
        "size",
        "stand-ins",
        "cuDNN",
        "extras",
    ):
        table.add_column(title, overflow="fold", no_wrap=title == "name")
    for runtime in runtimes:
        table.add_row(runtime.name, *_cells(runtime))
    console.print(table)
    for said in (_say_origins, _say_extras, _say_commands):
        for line in said(runtimes):
            console.print(line, soft_wrap=True)


def _say_origins(runtimes: Iterable[Runtime]) -> Iterator[str]:
    for runtime in runtimes:
        if runtime.origin != "memgate":
            yield f"{runtime.name} comes from {runtime.origin}"


def _say_extras(runtimes: Iterable[Runtime]) -> Iterator[str]:
    for runtime in runtimes:
        if added := [extra.name for extra in runtime.extras if runtime.has_extra(extra)]:
            yield f"{runtime.name} has the extras {', '.join(added)}"


def _say_commands(runtimes: Iterable[Runtime]) -> Iterator[str]:
    for runtime in runtimes:
        if not runtime.is_installed:
            yield f"install {runtime.name}: {install_command(runtime.name)}"
            continue
        for what, command in _can_be_added(runtime):
            yield f"add {what} to {runtime.name}: {command}"


def _can_be_added(runtime: Runtime) -> Iterator[tuple[str, str]]:
    if runtime.cudnn and not runtime.has_cudnn:
        yield "the real cuDNN", install_command(runtime.name, with_cudnn=True)
    for extra in runtime.extras:
        if not runtime.has_extra(extra):
            what = f"{extra.name} ({extra.description}; {format_size(extra.disk_bytes)})"
            yield what, install_command(runtime.name, extra=extra.name)


_INSTALLED = {
    RuntimeState.INSTALLED: "yes",
    RuntimeState.ABSENT: "no",
    RuntimeState.UNFINISHED: "not completely",
    RuntimeState.OUTDATED: "by another version of memgate",
}


def _cells(runtime: Runtime) -> tuple[str, ...]:
    has = read_contents(runtime)
    return (
        has.torch or "",
        _INSTALLED[runtime.state],
        has.python or "",
        str(has.num_packages or ""),
        format_size(has.disk_bytes) if has.disk_bytes else "",
        "yes" if runtime.has_stand_ins else "no",
        "yes" if runtime.has_cudnn else "no" if runtime.cudnn else "none",
    )


def _row(runtime: Runtime) -> dict[str, object]:
    has = read_contents(runtime)
    return {
        "name": runtime.name,
        "description": runtime.description,
        "installed": runtime.is_installed,
        "state": runtime.state,
        "torch": has.torch,
        "python": has.python,
        "num_packages": has.num_packages,
        "packages": runtime.bare,
        "stand_ins": runtime.has_stand_ins,
        "cudnn": runtime.cudnn if runtime.has_cudnn else None,
        "extras": [
            {
                "name": extra.name,
                "description": extra.description,
                "installed": runtime.has_extra(extra),
                "packages": extra.packages,
                "needs": extra.needs,
                "disk_bytes": extra.disk_bytes,
            }
            for extra in runtime.extras
        ],
        "origin": runtime.origin,
        "home": str(runtime.home),
        "disk_bytes": has.disk_bytes,
    }


@runtimes_app.command("install")
def install_runtime_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="As `memgate runtimes list` shows it; the default one if not said."
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Make a runtime from a job's own requirements file, as pip reads it; any torch"
            " from 2.3 on.",
        ),
    ] = None,
    own_name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="The name of that runtime; the file's own if not said."
        ),
    ] = None,
    with_cudnn: Annotated[
        bool,
        typer.Option(
            "--with-cudnn",
            help="Also the real cuDNN, for the workspaces of convolutions: 0.8 GB to download,"
            " NVIDIA's own package under its own licence.",
        ),
    ] = False,
    extras: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="EXTRA",
            help="Also an extra, by the name that `memgate runtimes list` shows; may be repeated."
            " Nothing else in the runtime changes.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Install a runtime, or bring it up to date; does nothing if it already is.

    It goes to MEMGATE_RUNTIMES_DIR, or the data folder of this user. The first time it downloads
    torch, without NVIDIA's packages. Needs g++.

    Example: memgate runtimes install torch-2.14

    Example: memgate runtimes install torch-2.14 --with trl

    Example: memgate runtimes install --requirements requirements.txt --name my-job
    """
    runtime = _asked_for(name, requirements, own_name)
    done = install_shown(runtime, with_cudnn=with_cudnn, extras=extras or (), silent=as_json)
    if as_json:
        said = {"changed": done.changed, "seconds": round(done.seconds, 1)}
        typer.echo(json.dumps(_row(done.runtime) | said))


def _asked_for(name: str | None, requirements: Path | None, own_name: str | None) -> Runtime:
    if requirements is None and own_name is not None:
        raise InputError(f"--name {own_name} names what --requirements FILE makes; say which file")
    if requirements is None:
        return named_runtime(name)
    if name is not None:
        raise InputError(
            f"{name} and --requirements {requirements}: two runtimes; say --name {name} to give"
            " that name to what the file makes"
        )
    return plan_requirements(requirements, own_name)


def install_shown(
    runtime: Runtime, *, with_cudnn: bool, silent: bool, extras: Sequence[str] = ()
) -> Installation:
    """Install a runtime and show how it goes."""
    with _shown(runtime, silent=silent) as report:
        if runtime.state is RuntimeState.ABSENT and runtime.disk_bytes:
            size = format_size(runtime.disk_bytes)
            report(f"takes {size} in {runtime.home}, and a few minutes the first time")
        done = install(runtime, with_cudnn=with_cudnn, extras=extras, report=report)
    if silent:
        return done
    runtime = done.runtime
    if done.changed:
        size = format_size(read_contents(runtime).disk_bytes)
        typer.echo(f"{runtime.name} is ready after {done.seconds:.0f} s: {size} in {runtime.home}")
    else:
        typer.echo(f"{runtime.name} is installed and up to date in {runtime.home}")
    return done


@runtimes_app.command("remove")
def remove_runtime_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `memgate runtimes list` shows it.")
    ],
) -> None:
    """Remove a runtime, or what an interrupted installation left of it, unless it is in use.

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
def _shown(runtime: Runtime, *, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show progress: a line for each step, and how long the current one has taken so far."""
    console = Console(stderr=True, highlight=False, quiet=silent)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as shown:
        task = shown.add_task(runtime.name)

        def report(text: str) -> None:
            console.print(f"{runtime.name}: {text}", soft_wrap=True, markup=False)
            shown.reset(task, description=text)

        yield report
