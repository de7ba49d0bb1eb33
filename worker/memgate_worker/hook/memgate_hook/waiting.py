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
        """Find a module; everything except torch is left to others.

        Whoever asks may only want to know whether there is a torch: nothing is done yet.
        """
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        spec.loader = _TorchLoader(spec.loader, Path(spec.origin).parent, self)
        return spec


class _TorchLoader(Loader):
    """Loads torch as usual, with our stand-ins before it, and a session from then on."""

    def __init__(self, loader: Loader, torch_dir: Path, finder: _TorchFinder) -> None:
        self._loader = loader
        self._torch_dir = torch_dir
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as usual."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as usual."""
        sys.meta_path.remove(self._finder)
        session = Session.begin(self._torch_dir)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        session.torch_is_there(module)
