"""The versions of the libraries that a job runs with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

_VERSIONED = ("torch", "torchvision", "transformers", "timm")


def library_versions(site_packages: Path | None = None) -> dict[str, str]:
    """Return the version of each library that jobs use, or that it is missing.

    Args:
        site_packages: where to look; None: where this process imports from.
    """
    path = sys.path if site_packages is None else [str(site_packages)]
    return {name: _version(name, path) for name in _VERSIONED}


def _version(package: str, path: Sequence[str]) -> str:
    found = next(iter(distributions(name=package, path=list(path))), None)
    return "absent" if found is None else found.version
