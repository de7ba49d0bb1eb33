"""``--server``: the same question, asked of a server instead of an engine of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from rich.console import Console

from memgate.contract import EngineName
from memgate.errors import InputError
from memgate.jobspec import JobSpec
from memgate_worker.local import check_engine

if TYPE_CHECKING:
    from memgate import Client

#: a person waits for the error: fewer tries than a program makes
_NUM_TRIES = 3


@contextmanager
def connect(server: str, api_key: str | None, *, silent: bool = False) -> Iterator[Client]:
    """Open a client, and show that it is waiting.

    Raises:
        MissingExtraError: if the client's packages are not installed.
    """
    from memgate import Client  # an extra: the rest of the command line does without it

    console = Console(stderr=True, quiet=silent)
    with (
        Client(server, api_key=api_key, num_tries=_NUM_TRIES) as client,
        console.status(f"waiting for {server}"),
    ):
        yield client


def with_runtime(spec: JobSpec, runtime: str | None) -> JobSpec:
    """Name the runtime in the job, where a server looks for it."""
    return spec.model_copy(update={"runtime": runtime}) if runtime else spec


def engine_name(text: str) -> EngineName:
    """Check the name of an engine.

    Raises:
        InputError: with the known names.
    """
    check_engine(text)
    return cast(EngineName, text)


def refuse(server: str, **given: bool) -> None:
    """Refuse options that a server cannot follow.

    Raises:
        InputError: with the first that was given, and how to stay on this machine.
    """
    for option, is_given in given.items():
        if is_given:
            name = option if option == "a script" else f"--{option}"
            raise InputError(
                f"{name} works on this machine only, but --server asks {server}; leave out"
                " --server (with MEMGATE_URL set: --server '')"
            )
