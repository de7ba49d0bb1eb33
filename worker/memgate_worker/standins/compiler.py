"""Finds the compiler that builds the stand-ins, and runs it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from memgate.errors import StandInsMissingError

#: names that g++ goes by: as everywhere, and in a conda environment
_NAMES = ("g++", "c++", "x86_64-conda-linux-gnu-g++")

HOW_TO_GET_ONE = (
    "install one (on Debian and Ubuntu: apt install g++; with conda: conda install gxx), or build"
    " them on another machine and set MEMGATE_CACHE_DIR to a copy of its cache"
)


class BuildError(RuntimeError):
    """The compiler failed; the message is its own."""


def find_compiler() -> list[str]:
    """Return the command that compiles C++: what `CXX` says, or one on the path.

    Raises:
        StandInsMissingError: if there is none.
    """
    if said := os.environ.get("CXX"):
        return shlex.split(said)
    for name in _NAMES:
        if shutil.which(name):
            return [name]
    raise StandInsMissingError(
        "the stand-ins for NVIDIA's libraries must be built for this torch, and there is no C++"
        f" compiler; {HOW_TO_GET_ONE}"
    )


def compile_cxx(compiler: Sequence[str], *arguments: str) -> None:
    """Run the compiler.

    Raises:
        BuildError: if it fails.
    """
    command = [*compiler, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:2])} ... failed:\n{done.stderr}")
