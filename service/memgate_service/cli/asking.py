"""Five questions in a terminal, or their answers as options -> a first job spec."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer

from memgate.errors import InputError
from memgate.first_spec import (
    OPTIMIZERS,
    QUESTIONS,
    read_batch,
    read_input,
    read_model,
    read_optimizer,
    read_precision,
)
from memgate.jobspec import Precision
from memgate_worker.jobs.public import find_public_model

#: wrong answers to one question before we give up: something else than a person may be typing
_MAX_TRIES = 5

_CHOICES = {"optimizer": OPTIMIZERS, "precision": tuple(one.value for one in Precision)}


def read_answers(given: Mapping[str, str | None], model: Mapping[str, Any]) -> dict[str, Any]:
    """Read the answers that are given, for a model that is known; others are not returned.

    Raises:
        InputError: if one is wrong, with similar names.
    """
    spec: dict[str, Any] = {}
    for name in QUESTIONS:
        answer = given.get(name)
        if answer is not None:
            spec[name] = _read(name, answer, {"model": model} | spec)
    return spec


def ask_all(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Ask for what is not given.

    Raises:
        InputError: if there is no terminal to ask in, naming the options.
    """
    missing = [name for name in QUESTIONS if given.get(name) is None]
    if missing and not (sys.stdin.isatty() and sys.stderr.isatty()):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise InputError(
            f"there is no terminal to ask questions in: add {options}, or give a script or a config"
        )
    spec: dict[str, Any] = {}
    for name in QUESTIONS:
        answer = given.get(name)
        spec[name] = _read(name, answer, spec) if answer is not None else _ask(name, spec)
    return spec


def _ask(name: str, spec: Mapping[str, Any]) -> Any:
    words, default = QUESTIONS[name]
    if name == "input" and spec["model"]["source"] == "transformers":
        default = "512"
    if name in _CHOICES:
        typer.echo(f"  {', '.join(_CHOICES[name])}", err=True)
    for _ in range(_MAX_TRIES):
        answer = typer.prompt(words, default=default, err=True)
        try:
            return _read(name, str(answer), spec)
        except InputError as error:
            typer.echo(f"  {error.message}", err=True)
    raise InputError(f"{name}: {_MAX_TRIES} wrong answers")


def _read(name: str, answer: str, spec: Mapping[str, Any]) -> Any:
    source = spec.get("model", {}).get("source", "transformers")
    readers: dict[str, Callable[[str], Any]] = {
        "model": lambda text: read_model(text, lambda one: find_public_model(one).name),
        "input": lambda text: read_input(text, source),
        "batch_size": read_batch,
        "optimizer": read_optimizer,
        "precision": read_precision,
    }
    return readers[name](answer)
