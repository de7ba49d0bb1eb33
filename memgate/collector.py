"""Python's garbage collector, paused where millions of small objects are made and none is a cycle.

It would walk over all of them again and again: of a long trace that takes as long as the work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause it for a block, or for a function; it goes on afterwards if it was on before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
