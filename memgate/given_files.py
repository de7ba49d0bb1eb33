"""A path that somebody gave -> its content, if it is a file; errors about it name it.

Pipes and devices are not read: one may wait, the other may never end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from memgate.errors import InputError, UnsupportedTraceError

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
