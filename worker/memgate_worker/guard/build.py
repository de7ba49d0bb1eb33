"""Builds the guard's library and launcher from `native/`, once, into a cache.

Needs a C compiler and nothing else. What is built needs glibc 2.28 or later and no other library,
so it can be brought into a container. How it is used is in `guard.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NATIVE_DIR = Path(__file__).parent / "native"
LIBRARY_NAME = "libmemgate_guard.so"
LAUNCHER_NAME = "memgate-guard"
COMPILERS = ("cc", "gcc", "clang")

#: Functions of libc are declared with arguments that are never null; ours get what callers pass.
_OPTIONS = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fvisibility=hidden", "-fno-stack-protector"),
    *("-U_FORTIFY_SOURCE", "-fno-delete-null-pointer-checks", "-Wall", "-Wextra"),
    *("-Wno-nonnull-compare", "-Wno-cast-function-type"),
)
#: libdl has dlopen and dlsym before glibc 2.34
_LIBRARY_OPTIONS = ("-fPIC", "-shared", "-Wl,-z,defs", "-Wl,--no-as-needed", "-l:libdl.so.2")
_LAUNCHER_OPTIONS = ("-fPIE", "-pie", "-nostartfiles")
_LAUNCHER_SOURCES = ("launcher.c", "overlay.c", "confine.c")
_SHARED_SOURCES = ("kernel.c",)


class GuardBuildError(RuntimeError):
    """The guard cannot be built; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFiles:
    """The two programs of the guard."""

    library: Path
    launcher: Path


def guard_files(base: Path) -> GuardFiles:
    """Return the guard's programs, built if they are not in `base`, which may be read-only.

    Raises:
        GuardBuildError: there is no compiler, it failed, or the directory cannot be written.
    """
    directory = base / _digest()
    files = GuardFiles(library=directory / LIBRARY_NAME, launcher=directory / LAUNCHER_NAME)
    if directory.is_dir():
        return files
    try:
        _build_in(base, directory)
    except OSError as error:
        raise GuardBuildError(
            f"the guard that protects files is not in the cache, and was not built: {error}; set"
            " MEMGATE_CACHE_DIR to a directory that can be written to, or to a copy of one that has"
            " it"
        ) from None
    return files


def _build_in(base: Path, directory: Path) -> None:
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as name:
        built = Path(name) / "built"
        built.mkdir()
        _build(built)
        try:
            built.rename(directory)
        except OSError:
            # another process was faster, and built the same
            if not directory.is_dir():
                raise


def _digest() -> str:
    digest = hashlib.sha256(repr((_OPTIONS, _LIBRARY_OPTIONS, _LAUNCHER_OPTIONS)).encode())
    for source in sorted(NATIVE_DIR.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(directory: Path) -> None:
    names = {source.name for source in NATIVE_DIR.glob("*.c")}
    library_sources = sorted(names - set(_LAUNCHER_SOURCES))
    launcher_sources = [*_LAUNCHER_SOURCES, *_SHARED_SOURCES]
    _compile(library_sources, _LIBRARY_OPTIONS, directory / LIBRARY_NAME)
    _compile(launcher_sources, _LAUNCHER_OPTIONS, directory / LAUNCHER_NAME)


def _compile(sources: list[str], options: tuple[str, ...], output: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise GuardBuildError(
            "no C compiler: the guard that protects files is built once, and needs one of "
            f"{', '.join(COMPILERS)}; install one (on Debian and Ubuntu: apt install g++, which "
            "the stand-ins need, too), or run the same command on a machine that has one and set "
            "MEMGATE_CACHE_DIR to a copy of its cache"
        )
    paths = [str(NATIVE_DIR / name) for name in sources]
    command = [compiler, *_OPTIONS, *paths, *options, "-o", str(output)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if result.returncode != 0:
        raise GuardBuildError(f"{compiler} could not build {output.name}:\n{result.stderr}")
