"""Sees ``import torch`` coming, and has our stand-ins for NVIDIA's libraries loaded before it.

The dynamic loader looks for a library that is already loaded under the wanted name before it
searches any path. So torch finds ours, whatever else is installed, and nothing in the job's
environment is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from .session import Session


def wait_for_torch() -> None:
    """From now on, act when torch is imported."""
    sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(MetaPathFinder):
    """Finds torch where it would be found, and prepares for it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Find a module; everything except torch is left to others."""
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        sys.meta_path.remove(self)
        spec.loader = _TorchLoader(spec.loader, Session.begin(Path(spec.origin).parent))
        return spec


class _TorchLoader(Loader):
    """Loads torch as usual, and starts the session when that is done."""

    def __init__(self, loader: Loader, session: Session) -> None:
        self._loader = loader
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as usual."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as usual."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._session.torch_is_there(module)
