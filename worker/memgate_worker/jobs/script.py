"""Runs a user's training script in this process, as ``python script arguments`` would.

What it may see and when it is stopped is up to its engine; ``failures`` says whose fault it is if
it fails.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run_as_main(path: Path, arguments: Sequence[str], directory: Path) -> None:
    """Run a script to its end. Raises what the script raises.

    Raises:
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
            raise  # its last output says why
