"""Runs in every Python process of a job before the job's own code; starts ``memgate_hook``.

Python imports the first ``sitecustomize`` that it finds, and this folder comes first. So the
person's own one is run from here, and this folder leaves the module search path again: the job sees
the path that it would see without us.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _is_here(entry: str) -> bool:
    return os.path.abspath(entry) == _HERE


def _run_the_users_own() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


import memgate_hook  # type: ignore[import-not-found]  # noqa: E402  it is next to this file

memgate_hook.start()
sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
_run_the_users_own()
