"""Renews the lists of names that NVIDIA's libraries export (`standins/names`).

``python -m tests.nvidia_names PLACE ...``, where each place is a `site-packages` with NVIDIA's
packages in it, or a folder with their headers: `cuda.h` has the names of the driver, which no
package carries, and `nvml.h` or `pynvml.py` those of NVML. Names that are listed stay listed: a
library of a later CUDA has fewer of the old ones, and a stand-in may have more than its original.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from memgate_worker.standins.elf import read_elf
from memgate_worker.standins.names import NAMES_DIR, known_names
from memgate_worker.standins.symbols import LIBRARY_OF_PREFIX, library_of

#: files that name the calls of a library without being it
_TEXTS = {"cuda.h": "libcuda", "cudaGL.h": "libcuda", "nvml.h": "libnvidia-ml"}
_TEXTS["pynvml.py"] = "libnvidia-ml"
_CALL = re.compile(r"\b((?:cu[A-Z]|nvml[A-Z])\w{3,})\b(?=\s*\(|\"\))")
_RENAMED = re.compile(r"#\s*define\s+(cu[A-Z]\w+)\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w+)")
_PER_THREAD = re.compile(r"__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w+)\)")
_NOT_CALLS = re.compile(r"\w+_(st|fn|t|enum)|\w*PFN\w*")

#: only torch uses the first, and has as many names as all others together; NVIDIA uses the second
_LEFT_OUT = ("libnvshmem_host", "libnvJitLink")


def names_of_library(path: Path) -> Iterator[str]:
    """Yield the calls that a library exports."""
    library = path.name.split(".so")[0]
    for symbol in read_elf(path).defined:
        if not symbol.is_data and library_of(symbol.name) == library:
            yield symbol.name


def names_in_text(text: str, library: str) -> Iterator[str]:
    """Yield the calls that a header, or Python's module for it, mentions."""
    found = set(_CALL.findall(text))
    for renamed in _RENAMED.findall(text):
        found.update(renamed)
    for suffix, name in _PER_THREAD.findall(text):
        found |= {name, f"{name}_{suffix.lower()}"}
    for name in found:
        if library_of(name) == library and not _NOT_CALLS.fullmatch(name):
            yield name


def renew(places: Iterable[Path]) -> None:
    """Add what is found in these places to the lists."""
    libraries = set(LIBRARY_OF_PREFIX.values())
    found: dict[str, set[str]] = {library: set(known_names(library)) for library in libraries}
    for place in places:
        for path in place.rglob("lib*.so.*"):
            library = path.name.split(".so")[0]
            if library in libraries:
                found[library].update(names_of_library(path))
        for name, library in _TEXTS.items():
            for path in place.rglob(name):
                found[library].update(names_in_text(path.read_text(errors="replace"), library))
    NAMES_DIR.mkdir(exist_ok=True)
    for library, names in sorted(found.items()):
        if names and library not in _LEFT_OUT:
            (NAMES_DIR / f"{library}.txt").write_text("\n".join(sorted(names)) + "\n")


if __name__ == "__main__":
    renew(map(Path, sys.argv[1:]))
