"""The versions of the libraries that a job ran with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_VERSIONED = ("torch", "torchvision", "transformers", "timm")


def library_versions() -> dict[str, str]:
    """Return the version of each library that jobs use, or that it is absent."""
    return {name: _version(name) for name in _VERSIONED}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
