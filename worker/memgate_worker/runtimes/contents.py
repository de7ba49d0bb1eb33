"""An installed runtime -> what is in it: versions, number of packages, size on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from memgate_worker.runtimes.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContents:
    """What a runtime has; for one that is not installed, what it would have."""

    #: None if that is not known before it is installed
    torch: str | None
    python: str | None
    #: in its environment; 0 if it is not installed
    num_packages: int
    disk_bytes: int


def read_contents(runtime: Runtime) -> RuntimeContents:
    """Read what is in a runtime; nothing of it is started."""
    places = [str(path) for path in (runtime.venv / "lib").glob("python3.*/site-packages")]
    versions = {package.name: package.version for package in distributions(path=places)}
    pinned = (name.partition("==")[2] for name in runtime.bare if name.startswith("torch=="))
    return RuntimeContents(
        torch=versions.get("torch") or next(pinned, None),
        python=next((Path(place).parent.name.removeprefix("python") for place in places), None),
        num_packages=len(versions),
        disk_bytes=disk_bytes(runtime),
    )


def disk_bytes(runtime: Runtime) -> int:
    """Return how much space a runtime takes, not following links."""
    return sum(
        (Path(directory) / name).lstat().st_blocks * 512
        for directory, _, names in os.walk(runtime.home)
        for name in names
    )


def read_extra_versions(runtime: Runtime) -> tuple[tuple[str, str], ...]:
    """Return what was added to a runtime, by the names of extras, each with its versions.

    One whose installation was interrupted is among them: some of its packages may be there.
    """
    stamps = sorted(runtime.extras_dir.glob("*")) if runtime.extras_dir.is_dir() else []
    return tuple((stamp.name, stamp.read_text().partition("\n")[2]) for stamp in stamps)
