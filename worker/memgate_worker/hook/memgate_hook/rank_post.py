"""What ranks of one run leave for those that run later: objects and small numbers, by their order.

Ranks run one after the other, the first one first. What it sends the others is often all that they
get to know: sizes, names, a seed.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

#: what is larger is not left for others
_MAX_BYTES = 16 << 20
#: objects travel as tensors: while it has something in it, those are no numbers of the job
carrying_objects: list[None] = []

#: of one kind, from one rank to another: so many are left, and no more
_MAX_LEFT = 1000


class Post:
    """A folder of the run; without one (a job by a spec) nothing is left, and nothing found."""

    def __init__(self) -> None:
        """Begin with nothing sent."""
        run_dir = os.environ.get("MEMGATE_RUN_DIR")
        self._directory = Path(run_dir) if run_dir else None
        self._numbers: dict[str, int] = {}

    def leave(self, content: Any, channel: str) -> None:
        """Leave something in a channel, after what is there already."""
        path = self._next(f"left-{channel}", f"{dist.get_rank()}-{channel}")
        if path is None:
            return
        written = pickle.dumps(content)
        if len(written) <= _MAX_BYTES:
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(written)
            unfinished.replace(path)

    def find(self, source: int, channel: str) -> tuple[Any, bool]:
        """Return what a rank has left next in a channel, and whether it has left anything."""
        path = self._next(f"found-{source}-{channel}", f"{source}-{channel}")
        if path is None or not path.is_file():
            return None, False
        return pickle.loads(path.read_bytes()), True

    def _next(self, counted: str, channel: str) -> Path | None:
        number = self._numbers[counted] = self._numbers.get(counted, -1) + 1
        if self._directory is None or number >= _MAX_LEFT:
            return None
        return self._directory / f"objects-{channel}-{number}.pickle"


@contextmanager
def carry_objects() -> Iterator[None]:
    """Have tensors sent that carry objects, of which nobody needs to be left any."""
    carrying_objects.append(None)
    try:
        yield
    finally:
        carrying_objects.pop()


def name_group(group: Any) -> str:
    """Name a group by its ranks, so that each of them finds the others."""
    if group is None or group == dist.group.WORLD:
        return "all"
    return "_".join(map(str, dist.get_process_group_ranks(group)))[:100]


def find_source(rank: int | None, group_rank: int | None, group: Any) -> int:
    """Return a rank among all that a call names, in one of the two ways."""
    if group_rank is not None:
        return dist.get_global_rank(group or dist.group.WORLD, group_rank)
    return 0 if rank is None else rank


def is_in(group: Any) -> bool:
    """Tell whether this rank is one of a group."""
    return dist.get_rank(group) >= 0
