"""Has something done to a module as soon as it was imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Callable

_wanted: dict[str, Callable[[Any], None]] = {}


def on_import(name: str, change: Callable[[Any], None]) -> None:
    """Call ``change`` with a module when it is there."""
    if not _wanted:
        sys.meta_path.insert(0, _Finder())
    _wanted[name] = change


class _Finder(MetaPathFinder):
    """Finds modules where they would be found."""

    def __init__(self) -> None:
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Find a module; those that nothing is done to are left to others."""
        if name not in _wanted or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _wanted[name])
        return spec


class _Loader(Loader):
    """Loads a module as usual, and changes it then."""

    def __init__(self, loader: Any, change: Callable[[Any], None]) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as usual."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as usual, and change it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)
