"""A shared library or object file -> the names it defines, the names it wants, and from where.

Reads the ELF format itself, so that no binutils are needed: only the tables that the loader uses,
for 64-bit little-endian files. It checks nothing that a linker has not checked already.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERSION_NEED = struct.Struct("<HHIII")
_VERSION_NEED_AUX = struct.Struct("<IHHII")
_VERSION_DEFINITION = struct.Struct("<HHHHIII")

_MAGIC = b"\x7fELF\x02\x01"
_UNDEFINED = 0
_HIDDEN_VERSION = 0x8000
_DT_NEEDED, _DT_SONAME = 1, 14
_WEAK = 2
_OBJECT, _TLS = 1, 6
_LOCAL = 0
_FILE_VERSION = 1  # a version definition of the file itself, not of symbols


class _SectionType(IntEnum):
    SYMBOLS = 2
    DYNAMIC = 6
    DYNAMIC_SYMBOLS = 11
    VERSION_DEFINITIONS = 0x6FFFFFFD
    VERSION_NEEDS = 0x6FFFFFFE
    VERSIONS = 0x6FFFFFFF


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Version(NamedTuple):
    """A symbol version: its name, and for a wanted symbol the soname it is wanted from."""

    name: str
    soname: str


NO_VERSION = Version("", "")


class ElfSymbol(NamedTuple):
    """One name of the symbol table."""

    name: str
    version: Version
    is_data: bool
    is_weak: bool


class NotElfError(ValueError):
    """Not a file for this kind of machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """What the loader or the linker sees of a file."""

    soname: str
    needed: tuple[str, ...]
    defined: tuple[ElfSymbol, ...]
    wanted: tuple[ElfSymbol, ...]
    #: every version that it needs of other libraries
    needed_versions: tuple[Version, ...]


def read_elf(path: Path) -> ElfFile:
    """Read the symbols of a library, or of an object file.

    Raises:
        NotElfError: if it is something else.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise NotElfError(f"{path} is not a 64-bit ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).read()


class _Reader:
    """Reads one mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        header = _HEADER.unpack_from(data)
        offset, entry_size, count = header[6], header[11], header[12]
        self._sections = [
            _Section(*_SECTION.unpack_from(data, offset + index * entry_size))
            for index in range(count)
        ]

    def read(self) -> ElfFile:
        dynamic = self._section(_SectionType.DYNAMIC)
        needs = dict(self._version_needs())
        versions = needs | dict(self._version_definitions())
        symbols = list(self._symbols(versions))
        return ElfFile(
            soname=next(iter(self._dynamic_texts(dynamic, _DT_SONAME)), ""),
            needed=tuple(self._dynamic_texts(dynamic, _DT_NEEDED)),
            defined=tuple(symbol for is_defined, symbol in symbols if is_defined),
            wanted=tuple(symbol for is_defined, symbol in symbols if not is_defined),
            needed_versions=tuple(needs.values()),
        )

    def _section(self, kind: _SectionType) -> _Section | None:
        return next((section for section in self._sections if section.kind == kind), None)

    def _text(self, strings: _Section, offset: int) -> str:
        start = strings.offset + offset
        return self._data[start : self._data.find(b"\0", start)].decode()

    def _dynamic_texts(self, dynamic: _Section | None, tag: int) -> Iterator[str]:
        if dynamic is None:
            return
        strings = self._sections[dynamic.link]
        table = self._data[dynamic.offset : dynamic.offset + dynamic.size]
        for found, value in _DYNAMIC.iter_unpack(table):
            if found == tag:
                yield self._text(strings, value)

    def _symbols(self, versions: dict[int, Version]) -> Iterator[tuple[bool, ElfSymbol]]:
        kind = _SectionType.DYNAMIC_SYMBOLS
        table = self._section(kind) or self._section(_SectionType.SYMBOLS)
        if table is None:
            return
        strings = self._sections[table.link]
        numbers = self._version_numbers(table.size // _SYMBOL.size)
        rows = _SYMBOL.iter_unpack(self._data[table.offset : table.offset + table.size])
        for (name, info, _, section, _, _), number in zip(rows, numbers, strict=True):
            if name == 0 or info >> 4 == _LOCAL:
                continue
            version = versions.get(number & ~_HIDDEN_VERSION, NO_VERSION)
            is_data = info & 0xF in (_OBJECT, _TLS)
            symbol = ElfSymbol(self._text(strings, name), version, is_data, info >> 4 == _WEAK)
            yield section != _UNDEFINED, symbol

    def _version_numbers(self, count: int) -> tuple[int, ...]:
        section = self._section(_SectionType.VERSIONS)
        if section is None:
            return (0,) * count
        return struct.unpack_from(f"<{count}H", self._data, section.offset)

    def _version_needs(self) -> Iterator[tuple[int, Version]]:
        section = self._section(_SectionType.VERSION_NEEDS)
        if section is None:
            return
        strings = self._sections[section.link]
        position = section.offset
        for _ in range(section.info):
            _, count, file, first, following = _VERSION_NEED.unpack_from(self._data, position)
            soname = self._text(strings, file)
            entry = position + first
            for _ in range(count):
                _, _, number, name, next_entry = _VERSION_NEED_AUX.unpack_from(self._data, entry)
                yield number, Version(self._text(strings, name), soname)
                entry += next_entry
            position += following

    def _version_definitions(self) -> Iterator[tuple[int, Version]]:
        section = self._section(_SectionType.VERSION_DEFINITIONS)
        if section is None:
            return
        strings = self._sections[section.link]
        position = section.offset
        for _ in range(section.info):
            fields = _VERSION_DEFINITION.unpack_from(self._data, position)
            _, flags, number, _, _, first, following = fields
            (name,) = struct.unpack_from("<I", self._data, position + first)
            if not flags & _FILE_VERSION:
                yield number, Version(self._text(strings, name), "")
            position += following
