"""A path that somebody gave -> its content, if it is a file; errors about it name it.

Pipes and devices are not read: one may wait, the other may never end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from memgate.errors import InputError, UnsupportedTraceError
from memgate.jobspec.varying import LengthsFile
from memgate.lengths_text import MAX_LENGTHS_TEXT, replace_file
from memgate.validation import validate

_OTHERS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


@contextmanager
def open_given_file(path: Path, *, instead: str = "give the path of a file") -> Iterator[BinaryIO]:
    """Open a file; errors about it, and about what is in it, name the file.

    Args:
        path: where it is.
        instead: what to do if it is not a file.

    Raises:
        InputError: if it cannot be read, or is not a file.
    """
    with naming(path):
        if other := _OTHERS.get(stat.S_IFMT(os.stat(path).st_mode)):
            raise InputError(f"this is a {other}, not a file; {instead}")
        with path.open("rb") as stream:
            yield stream


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a file's name to errors about it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (InputError, UnsupportedTraceError) as error:
        raise error.about(path) from None


#: fields of ``input`` that a file may stand for
_VARYING = ("sequence_length", "shape")


def read_lengths(document: object, directory: Path) -> object:
    """Put the lengths of the files that a job spec names into it; other specs stay as they are.

    Args:
        document: the spec, as it was read from JSON or YAML.
        directory: where relative paths begin.

    Raises:
        InputError: if such a file cannot be read, or holds something else.
    """
    given = document.get("input") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(given, dict):
        return document
    found = {
        field: _read_lengths(given[field], directory, field)
        for field in _VARYING
        if isinstance(given.get(field), dict) and "file" in given[field]
    }
    return document | {"input": given | found} if found else document


def _read_lengths(given: object, directory: Path, field: str) -> Any:
    spec = validate(LengthsFile, given, what=f"job spec: input.{field}")
    with open_given_file(directory / spec.file) as stream:
        content = stream.read(MAX_LENGTHS_TEXT + 1)
        if len(content) > MAX_LENGTHS_TEXT:
            raise InputError(f"a file of lengths may have {MAX_LENGTHS_TEXT:,} bytes")
        text = content.decode(errors="replace")
        return replace_file(spec, text, of_shapes=field == "shape")
