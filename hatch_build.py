"""Builds the native core, memgate/allocator/native, when memgate is installed or packed.

Without a C++ compiler, or without Python's headers, memgate is installed all the same: its Python
core gives the same answers, twenty times slower. ``MEMGATE_NATIVE_CORE=require`` makes that an
error, as for wheels that are published; ``never`` leaves the native core out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("memgate/allocator/native")
#: one build serves every CPython from 3.11 on: it uses the limited API
EXTENSION = "core.abi3.so"
TAG = "cp311-abi3"
FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden")


class NotBuiltError(Exception):
    """There is no native core; the message says why."""


class NativeCoreHook(BuildHookInterface[Any]):
    """Adds the extension to a wheel; for an editable install, to the source tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, and say of which platform the wheel is."""
        wanted = os.environ.get("MEMGATE_NATIVE_CORE", "auto")
        built = Path(self.root) / SOURCES / EXTENSION
        if version != "editable":
            self._folder = tempfile.TemporaryDirectory(prefix="memgate-native-")
            built = Path(self._folder.name) / EXTENSION
        try:
            if wanted == "never":
                raise NotBuiltError("MEMGATE_NATIVE_CORE is never")
            build(Path(self.root) / SOURCES, built)
        except NotBuiltError as error:
            if wanted == "require":
                raise
            built.unlink(missing_ok=True)
            self.app.display_warning(
                f"memgate: the native core was not built: {error}\n"
                "memgate works without it: replays run on the Python core, 20 times slower"
            )
            return
        if version != "editable":
            build_data["force_include"][str(built)] = str(SOURCES / EXTENSION)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"{TAG}-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        if version != "editable":
            self._folder.cleanup()


def build(sources: Path, target: Path) -> None:
    """Compile the extension.

    Raises:
        NotBuiltError: if there is no compiler, or it fails.
    """
    compiler = find_compiler()
    include = sysconfig.get_path("include")
    # beside the target first: a process that has the old one keeps it
    made = target.with_name(f"{target.name}.new")
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    command = [
        *compiler,
        *FLAGS,
        *shared,
        f"-I{include}",
        f'-DMEMGATE_SOURCES="{digest_sources(sources)}"',
        *map(str, sorted(sources.glob("*.cpp"))),
        "-o",
        str(made),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        made.unlink(missing_ok=True)
        said = ran.stderr.strip().splitlines()
        errors = [line for line in said if "error:" in line] or said[-1:]
        raise NotBuiltError(f"{shlex.join(compiler)} failed: {'; '.join(errors[:3])}")
    made.replace(target)


def digest_sources(sources: Path) -> str:
    """Return a digest of what the extension is built from; it bears it as ``SOURCES``."""
    digest = hashlib.sha256()
    for path in sorted([*sources.glob("*.cpp"), *sources.glob("*.h")]):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def find_compiler() -> list[str]:
    """Return the C++ compiler: that of ``CXX``, or one of the usual names.

    Raises:
        NotBuiltError: if there is none.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    for name in names:
        program, *options = shlex.split(name)
        if shutil.which(program):
            return [program, *options]
    raise NotBuiltError(f"there is no C++ compiler ({', '.join(names)})")
