"""Libraries that only some jobs need, and some runtimes lack."""

from __future__ import annotations

import importlib
from typing import Any

from memgate.errors import LibraryMissingError


def need_library(module: str, field: str) -> Any:
    """Import a module of a library that a field of a job spec needs.

    Raises:
        LibraryMissingError: if the runtime lacks it.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise LibraryMissingError(
            f"{field} needs {library}, which the job's runtime lacks; add {library} to what the"
            " runtime is made from and install it again: memgate runtimes install --help"
        ) from error
