"""No files and no network while a model is built: no part of it may come from a path or a server.

Libraries know many ways to a file or a download: names of models with a prefix, paths in a
configuration, weights of a backbone. Those that we know are refused by name, with the field; this
module handles the rest. What a library consists of (modules that it imports when they are needed,
tables that it ships) stays open.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import memgate
import memgate_worker

#: where the interpreter, its libraries and memgate are, besides the module search path
_OWN = (
    sys.prefix,
    sys.base_prefix,
    str(Path(memgate.__file__).parent),
    str(Path(memgate_worker.__file__).parent),
)

#: what the system says about itself, which libraries read when they are imported
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/usr/share/zoneinfo/")


#: audit events before Python touches a file or a folder; the first argument is its path
_ON_FILES = frozenset(
    {"open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.link"}
)


class SealedError(Exception):
    """Something was about to be opened."""


class _Seal:
    """What this process may not do at the moment."""

    def __init__(self) -> None:
        self.is_closed = False
        self.is_installed = False
        #: folders that stay open
        self.own: tuple[str, ...] = ()
        #: what was tried first; libraries may hide the error
        self.tried: str | None = None

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Check everything that Python opens; audit hooks cannot be removed again."""
        if not self.is_closed:
            return
        if event in _ON_FILES and not self._is_own(arguments[0]):
            self._refuse(f"{os.fsdecode(arguments[0])!r}")
        elif event.startswith("socket.") and event != "socket.gethostname":
            self._refuse("the network")

    def _is_own(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):  # already open
            return True
        real = os.path.realpath(os.fsdecode(path))
        is_inside = any(real == one or real.startswith(f"{one}{os.sep}") for one in self.own)
        return is_inside or real.startswith(_OF_THE_SYSTEM)

    def _refuse(self, what: str) -> None:
        self.tried = self.tried or what
        raise SealedError(f"it wants {what}")


_seal = _Seal()


@contextmanager
def sealed() -> Iterator[None]:
    """Allow nothing to be opened in this block except what belongs to the libraries.

    Raises:
        SealedError: if something else was tried and the block failed because of it.
    """
    if not _seal.is_installed:
        sys.addaudithook(_seal.check)
        _seal.is_installed = True
    _seal.own = tuple(os.path.realpath(place) for place in (*_OWN, *sys.path) if place)
    _seal.tried = None
    _seal.is_closed = True
    try:
        yield
    except Exception as error:
        if _seal.tried is not None:
            raise SealedError(f"it wants {_seal.tried}") from error
        raise
    finally:
        _seal.is_closed = False
