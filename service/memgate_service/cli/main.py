"""The command line door: ``memgate``. Reads files, calls the library, prints, sets the exit status.

Exit status: 0 done (estimate, analyze: admit; replay: all matched), 1 failed (replay: a mismatch),
2 bad usage or bad input, 3 reject (max-batch: no batch is admitted; fit: no GPU is), 4 uncertain.
Of an error, the fault decides: 2 if it is the caller's, and otherwise 1.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from memgate.errors import Fault, MemgateError, MissingExtraError
from memgate.version import __version__
from memgate_service.cli.commands.accuracy import accuracy_command
from memgate_service.cli.commands.analyze import analyze_command
from memgate_service.cli.commands.estimate import estimate_command
from memgate_service.cli.commands.fit import fit_command
from memgate_service.cli.commands.listings import gpus_command, runtimes_command
from memgate_service.cli.commands.max_batch import max_batch_command
from memgate_service.cli.commands.profile import profile_command
from memgate_service.cli.commands.replay import replay_command

app = typer.Typer(
    name="memgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Will this training job fit on that GPU? Answered before it is scheduled, on CPUs alone.",
)


_ANYTHING = {"ignore_unknown_options": True}


def _add(command: str, extra: str) -> None:
    """Add a command, or a group of them, that needs an extra; without it, one that says so."""
    try:
        module = import_module(f"memgate_service.cli.commands.{command}")
    except ModuleNotFoundError as error:
        missing = MissingExtraError.of(f"memgate {command}", error, extra)

        def explain(_: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
            raise missing

        # Rich would take an extra in brackets for markup, and print nothing of it.
        explain.__doc__ = escape(f"Not installed: {missing.message}.")
        app.command(command, context_settings=_ANYTHING)(explain)
        return
    if hasattr(module, f"{command}_app"):
        app.add_typer(getattr(module, f"{command}_app"))
    else:
        app.command(command)(getattr(module, f"{command}_command"))


_add("up", "service,up")
app.command("estimate")(estimate_command)
app.command("analyze")(analyze_command)
app.command("max-batch")(max_batch_command)
app.command("fit")(fit_command)
app.command("profile", context_settings=_ANYTHING)(profile_command)
app.command("gpus")(gpus_command)
app.command("runtimes")(runtimes_command)
app.command("replay")(replay_command)
app.command("accuracy")(accuracy_command)
_add("keys", "service")
_add("slurm", "client")
_add("certificates", "service,kubernetes")
_add("controller", "service,client,kubernetes")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"memgate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options that stand before a command."""


def main() -> None:
    """Run the command line; every error on purpose becomes one sentence and an exit status."""
    try:
        app()
    except MemgateError as error:
        _say(error.message)
        sys.exit(2 if error.fault is Fault.CALLER else 1)
    except OSError as error:  # a full disk, a closed pipe: nobody is left to be told
        _say(f"cannot write the answer: {error.strerror}")
        sys.exit(1)


def _say(message: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    console.print(f"memgate: {message}")
