"""The versions of the libraries that a job runs with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

_VERSIONED = ("torch", "torchvision", "transformers", "timm")

#: what only some jobs use; a run may depend on them, and an answer does not name them
_BESIDE = ("accelerate", "bitsandbytes", "datasets", "lightning", "peft", "trl")

_ABSENT = "absent"


def library_versions(site_packages: Path | None = None) -> dict[str, str]:
    """Return the version of each library that jobs use, or that it is missing.

    Args:
        site_packages: where to look; None: where this process imports from.
    """
    path = sys.path if site_packages is None else [str(site_packages)]
    return {name: _version(name, path) for name in _VERSIONED}


def versions_beside(site_packages: Path) -> dict[str, str]:
    """Return the versions of libraries that only some jobs use, as far as they are installed."""
    found = {name: _version(name, [str(site_packages)]) for name in _BESIDE}
    return {name: version for name, version in found.items() if version != _ABSENT}


def _version(package: str, path: Sequence[str]) -> str:
    found = next(iter(distributions(name=package, path=list(path))), None)
    return _ABSENT if found is None else found.version
