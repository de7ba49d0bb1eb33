"""Starts a host inside a runtime: ``python -P start.py MEMGATE_DIR WORKER_DIR NEEDS_DIR...``.

A runtime has its own packages, and sees exactly two of ours: nothing else that happens to be
installed next to memgate, and nothing in the working directory. What those two need is looked for
last, so that the runtime's own versions win. Run by path, so it imports nothing from memgate before
it knows where memgate is.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


class TwoPackages(MetaPathFinder):
    """Finds the packages it was given by name, and nothing else."""

    def __init__(self, *directories: Path) -> None:
        self._parents = {directory.name: str(directory.parent) for directory in directories}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a package; what is inside it is found in the usual way."""
        parent = self._parents.get(name)
        return None if parent is None else PathFinder.find_spec(name, [parent])


def main() -> None:
    """Serve standard input."""
    memgate, worker, *needs = sys.argv[1:]
    sys.meta_path.insert(0, TwoPackages(Path(memgate), Path(worker)))
    sys.path.extend(needs)
    from memgate_worker.engines.host import main as serve

    serve()


if __name__ == "__main__":
    main()
