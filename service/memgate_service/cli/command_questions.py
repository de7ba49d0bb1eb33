"""Options of the command line -> the question about a command, for every command that takes one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate_worker.local import CommandQuestion, RunLimits, Watch


def ask_about_command(
    command: Sequence[str],
    gpu: GpuSpec,
    *,
    no_evaluation: bool,
    limits: RunLimits,
    longest: str | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> CommandQuestion:
    """Ask about a command that is started here and now; ``options`` are the question's own.

    A job without an evaluation is not watched for one.

    Raises:
        InputError: if ``longest`` is neither a length nor ``data``.
    """
    watch = watch or Watch()
    return CommandQuestion(
        command=tuple(command),
        directory=Path.cwd(),
        environment=os.environ,
        gpu=gpu,
        watch=watch._replace(seconds=0.0) if no_evaluation else watch,
        limits=limits,
        longest=_read_longest(longest),
        has_no_evaluation=no_evaluation,
        **options,
    )


def _read_longest(given: str | None) -> int | Literal["data"] | None:
    if given is None:
        return None
    if given == "data":
        return "data"
    if not given.isdecimal() or int(given) == 0:
        raise InputError(
            f"--longest {given}: it is a length, such as 512, or the word data, for the longest"
            " samples of the job's data set"
        )
    return int(given)


def refuse_without_a_command(**given: object) -> None:
    """Refuse options that only say how a command is run.

    Raises:
        InputError: with the first that was given.
    """
    for option, value in given.items():
        if value:
            raise InputError(
                f"--{option} {value}: only a command can be run that way, as in"
                f" memgate run --{option} {value} -- python train.py"
            )


def refuse_for_a_command(**given: str | None) -> None:
    """Refuse options that make no sense for a command, which runs here with its own libraries.

    Raises:
        InputError: with the first that was given.
    """
    for option, value in given.items():
        if value and (option, value) != ("engine", "auto"):
            raise InputError(
                f"--{option} {value}: a command runs on this machine, with the libraries of its own"
                " environment; leave it out"
            )
