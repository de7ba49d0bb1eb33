"""Libraries of torch -> the names that they want from each of NVIDIA's libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from memgate_worker.standins import symbols
from memgate_worker.standins.elf import read_elf

#: A library of NVIDIA's as the loader asks for it. Copies that other wheels carry under a name with
#: a hash in it (torchvision's own libcudart) are not ours to replace.
_SONAME = re.compile(r"(lib[A-Za-z_-]+)\.so\.\d+")


class Symbol(NamedTuple):
    """One name that torch wants from a library."""

    name: str
    version: str
    """The symbol version, empty if the library has none."""
    is_data: bool


class Imports(NamedTuple):
    """What some files want of NVIDIA's libraries."""

    wanted: dict[str, set[Symbol]]
    """By soname."""
    optional: set[str]
    """Names that are used only if they exist; a program asks by them what a library can do."""


def read_imports(files: Iterable[Path]) -> Imports:
    """Return the symbols that `files` want from each of NVIDIA's libraries, by soname."""
    tables = [read_elf(file) for file in files]
    libraries = set(symbols.LIBRARY_OF_PREFIX.values())
    needed = {soname for table in tables for soname in table.needed}
    sonames = {
        soname for soname in needed if (m := _SONAME.fullmatch(soname)) and m[1] in libraries
    }
    sonames.update(symbols.OPENED_BY_NAME)
    soname_of_library = {soname.split(".so")[0]: soname for soname in sonames}
    imports = Imports({soname: set() for soname in sorted(sonames)}, set())
    # What one of the files gives another is not NVIDIA's, even if its name looks like it.
    defined = {symbol.name for table in tables for symbol in table.defined}
    for symbol in (symbol for table in tables for symbol in table.wanted):
        if symbol.is_weak:
            imports.optional.add(symbol.name)
            continue
        library = symbols.library_of(symbol.name)
        if symbol.version.name:
            soname = symbol.version.soname
        else:
            soname = "" if symbol.name in defined else soname_of_library.get(str(library), "")
        if soname in imports.wanted:
            wanted = Symbol(symbol.name, symbol.version.name, symbol.is_data)
            imports.wanted[soname].add(wanted)
    return imports


def looked_up_names(torch_dir: Path) -> set[str]:
    """Return the driver and NVML calls that torch looks up by name while it runs."""
    return {
        match.decode()
        for name in symbols.FILES_WITH_LOOKUPS
        for match in symbols.LOOKED_UP_NAME.findall((torch_dir / "lib" / name).read_bytes())
    }
