"""A runtime -> the names of the models that its torchvision and timm have.

Read off their sources, where each constructor is registered: nothing is imported or started, and a
process without torch can offer the names.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes

#: a decorator, perhaps others, and the function
_REGISTERED = re.compile(r"^@register_model\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def list_constructors() -> tuple[tuple[str, str], ...]:
    """Return the library and name of each model that the default runtime has; none without it."""
    runtime = read_runtimes()[DEFAULT_RUNTIME]
    if not runtime.is_installed:
        return ()
    return _read(runtime.site_packages)


@cache
def _read(site_packages: Path) -> tuple[tuple[str, str], ...]:
    found = [
        (library, name)
        for library in ("torchvision", "timm")
        for path in sorted((site_packages / library / "models").rglob("*.py"))
        for name in _REGISTERED.findall(path.read_text(errors="replace"))
    ]
    return tuple(sorted(set(found), key=lambda one: (one[0] != "torchvision", one[1])))
