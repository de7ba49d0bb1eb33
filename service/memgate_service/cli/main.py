"""The command line door: ``memgate``. Finds the command, runs it, sets the exit status.

Exit status: 0 done, or admitted (replay: all matched); 1 failed (replay: a mismatch); 2 bad usage
or bad input; 3 rejected (fit, max-batch: nothing is admitted); 4 uncertain (convert, init: not all
that can matter is in the spec).

``lazy`` has the list of commands; each is imported when it is run.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from memgate.errors import MemgateError
from memgate.version import __version__
from memgate_service.cli.exit_status import FAILED, status_of_error
from memgate_service.cli.lazy import COMMANDS, LazyGroup, add_stub

app = typer.Typer(
    name="memgate",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Will this training job fit on that GPU? Answered before it is scheduled, on CPUs alone.",
)

for command in COMMANDS.values():
    add_stub(app, command)


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
    """Options that come before a command."""
    # importing what reads them takes time
    if os.environ.get("MEMGATE_GPUS") or os.environ.get("MEMGATE_COVERAGE"):
        from memgate_worker.own_gpus import load_own_gpus

        load_own_gpus()


def main() -> None:
    """Run the command line; every ``MemgateError`` becomes one sentence and an exit status."""
    try:
        app()
    except MemgateError as error:
        _say(error.message)
        sys.exit(status_of_error(error))
    except OSError as error:  # a full disk or a closed pipe: nobody can read the answer
        _say(f"cannot write the answer: {error.strerror}")
        sys.exit(FAILED)


def _say(message: str) -> None:
    from rich.console import Console  # not needed by commands that succeed

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    console.print(f"memgate: {message}")
