"""The names that NVIDIA's libraries are known to export, beyond those that torch itself wants.

One text file for each library, a name per line: those of every version that was looked at. A
library of ours exports them all, so that any extension can be loaded; what is not modelled is
refused by name when it is called. `python -m tests.nvidia_names` renews the files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

NAMES_DIR = Path(__file__).parent / "names"


@cache
def known_names(library: str) -> frozenset[str]:
    """Return the names that a library (`libcudart`) is known to export; none if it has no file."""
    path = NAMES_DIR / f"{library}.txt"
    return frozenset(path.read_text().split()) if path.is_file() else frozenset()
