"""Runs a person's training script in this process, as ``python script arguments`` would.

What it may see and when it is stopped is its engine's business.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from memgate.errors import InputError


def run_as_main(
    path: Path,
    arguments: Sequence[str],
    directory: Path,
    *,
    is_not_the_scripts_fault: Callable[[], bool] = lambda: False,
) -> None:
    """Run a script to its end.

    Raises:
        InputError: if it fails, with the line of the script that did.
        SystemExit: if it exits with a status other than 0.
    """
    os.chdir(directory)
    sys.argv = [str(path), *arguments]
    python_path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:0] = [str(path.parent.resolve()), *python_path]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as exited:
        if exited.code not in (None, 0):
            raise  # what it said last tells why
    except ModuleNotFoundError as error:
        raise InputError(
            f"{path} needs the module {error.name!r}, which this runtime lacks;"
            " a runtime of your own can have it: docs/phantom.md, Runtimes"
        ) from error
    except InputError:
        raise
    except Exception as error:
        if is_not_the_scripts_fault():
            raise
        said = traceback.format_exception_only(error)[-1].strip()
        raise InputError(f"{path} failed{_where(error, path)}: {said}") from error


def _where(error: Exception, path: Path) -> str:
    """Tell the last line of the script itself on the way to the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path
    ]
    return f" in line {lines[-1]}" if lines else ""
