"""A job's files -> a digest that changes with its code: by sizes and times, not by contents."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

#: what a job's code and settings are written in
_SUFFIXES = {
    *(".py", ".pyx", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt", ".gin"),
    *(".c", ".cpp", ".cu", ".h", ".jsonnet", ".conf"),
}
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "wandb", "mlruns", "checkpoints"}
_MAX_FILES = 5000
_MAX_ENTRIES = 50_000
_MAX_DEPTH = 8


def digest_code(directory: Path, script: str, arguments: Sequence[str]) -> str:
    """Return a digest of the files that a job's result depends on; empty if there are too many.

    Those are files with the endings of code beneath its directory, and files that its script or its
    arguments name. What is imported from elsewhere is not seen.
    """
    try:
        found = sorted(_stamps(directory, script, arguments))
    except (_TooManyError, OSError):
        return ""
    return hashlib.sha256(repr(found).encode()).hexdigest()


class _TooManyError(Exception):
    """There are more files than can be looked at."""


def _stamps(
    directory: Path, script: str, arguments: Sequence[str]
) -> Iterator[tuple[str, int, int]]:
    os.scandir(directory).close()  # one that cannot be read has no digest
    num_files = 0
    for path in {*_beneath(directory), *_named(directory, script, arguments)}:
        num_files += 1
        if num_files > _MAX_FILES:
            raise _TooManyError
        try:
            info = os.stat(path)
        except OSError:
            continue
        yield path, info.st_size, info.st_mtime_ns


def _beneath(directory: Path) -> Iterator[str]:
    num_entries = 0
    top = len(directory.parts)
    for folder, folders, names in os.walk(directory):
        num_entries += len(names) + len(folders)
        if num_entries > _MAX_ENTRIES:
            raise _TooManyError
        is_deep = len(Path(folder).parts) - top >= _MAX_DEPTH
        folders[:] = [] if is_deep else [one for one in folders if _is_looked_into(folder, one)]
        for name in names:
            if os.path.splitext(name)[1] in _SUFFIXES:
                yield os.path.join(folder, name)


def _is_looked_into(folder: str, name: str) -> bool:
    """Leave out what is not code of the job: hidden directories, environments, results."""
    is_environment = os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
    return not (name.startswith(".") or name in _SKIPPED or is_environment)


def _named(directory: Path, script: str, arguments: Sequence[str]) -> Iterator[str]:
    for word in {*_words(script), *arguments}:
        for part in (word, word.partition("=")[2]):
            path = os.path.join(directory, part)
            if part and len(path) < 4096 and "\0" not in path and os.path.isfile(path):
                yield os.path.normpath(path)


def _words(script: str) -> list[str]:
    try:
        return shlex.split(script, comments=True)
    except ValueError:
        return script.split()
