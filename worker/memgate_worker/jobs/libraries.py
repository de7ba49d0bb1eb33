"""Libraries that only some jobs need, and some runtimes lack."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from typing import Any

from memgate.errors import LibraryMissingError

#: how libraries are added to the runtime that this process runs in, as JSON; ``describe_runtime``
_VARIABLE = "MEMGATE_RUNTIME"


def describe_runtime(
    name: str, commands: Mapping[str, str], *, is_from_requirements: bool
) -> dict[str, str]:
    """Return the variables by which a runtime's process knows how libraries are added to it.

    Args:
        name: of the runtime.
        commands: by the module that jobs import, what adds it.
        is_from_requirements: the runtime is made from a job's own requirements file.
    """
    said = {"name": name, "commands": dict(commands), "requirements": is_from_requirements}
    return {_VARIABLE: json.dumps(said)}


def need_library(module: str, field: str) -> Any:
    """Import a module of a library that a field of a job spec needs.

    Raises:
        LibraryMissingError: if the runtime lacks it, with the command that adds it.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise missing_library(library, field) from error


def missing_library(library: str, field: str) -> LibraryMissingError:
    """Say that the runtime lacks what a field of a job spec needs, and how it is added."""
    said = json.loads(os.environ.get(_VARIABLE, "{}"))
    name = said.get("name")
    if command := said.get("commands", {}).get(library):
        step = f"add it with: {command}"
    elif said.get("requirements"):
        step = (
            f"add {library} to the requirements file that runtime {name!r} is made from, and"
            f" install it again: memgate runtimes install --requirements FILE --name {name}"
        )
    else:
        step = (
            "run the job with another runtime, or with one made from a requirements file that names"
            f" {library}: memgate runtimes install --requirements FILE"
        )
    return LibraryMissingError(f"{field} needs {library}, which the job's runtime lacks; {step}")
