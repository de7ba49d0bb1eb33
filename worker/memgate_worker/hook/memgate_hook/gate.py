"""Lets one rank of a job run, and has the processes of all others wait until it has ended.

Which one is up to memgate, in ``MEMGATE_RANK``. A process that is another rank waits where that is
first known: at its start if a launcher has told it by variables, before torch is imported; or where
it joins a process group. It ends with the status 0, so that its launcher sees a clean end.

What a launcher believes and what its processes are told may differ: it sees one node, and they are
those of the node of the rank that runs (``MEMGATE_LAYOUT``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from .connection import Connection
from .layout import PLACE_VARIABLES, Layout

_exit = os._exit

#: the rank that runs
CHOSEN = "MEMGATE_RANK"

#: set by a launcher for its processes: how they are laid out over all nodes
LAYOUT = "MEMGATE_LAYOUT"

#: set for all that a rank starts: they are no other ranks
IS_RANK = "MEMGATE_IS_RANK"


class RankPlace(NamedTuple):
    """Which process of how many."""

    rank: int
    world_size: int


def chosen_rank() -> int | None:
    """Return the rank that runs; None if this process is not in such a run, or is a rank."""
    if IS_RANK in os.environ or "MEMGATE_RUN_DIR" not in os.environ:
        return None
    chosen = os.environ.get(CHOSEN, "")
    return int(chosen) if chosen else None


def take_place() -> None:
    """At the start of a process: have it wait if its launcher has made it another rank."""
    chosen = chosen_rank()
    if chosen is None or LAYOUT not in os.environ or "LOCAL_RANK" not in os.environ:
        return
    said = json.loads(os.environ.pop(LAYOUT))
    if said is None:
        layout = Layout(int(os.environ.get("LOCAL_SIZE") or 1))
        place = RankPlace(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        layout = Layout(*said)
        first = chosen // layout.nproc * layout.nproc
        place = RankPlace(first + int(os.environ["LOCAL_RANK"]), layout.world_size)
        os.environ.update(layout.variables(place.rank, os.environ))
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(layout.nproc))
    os.environ.setdefault("MEMGATE_PHANTOM_DEVICES", str(layout.nproc))
    pass_or_wait(place, chosen)


def launch(layout: Layout, source: str) -> None:
    """In a launcher: say how the processes are laid out that it is about to start.

    It believes that there is one node, and they are told what they are on all of them.
    """
    expect_ranks(layout)
    tell_world(layout, source)


def expect_ranks(layout: Layout | None = None) -> None:
    """In a launcher: have its processes know that they are ranks; None: it tells them which."""
    for name in PLACE_VARIABLES:  # what they say of the launcher
        os.environ.pop(name, None)
    os.environ[LAYOUT] = json.dumps(layout)


def tell_world(layout: Layout, source: str, world_size: int = 0) -> None:
    """Say how many processes there are; ``world_size``: if nodes differ."""
    size = world_size or layout.world_size
    _tell(kind="world", world_size=size, nproc=layout.nproc, nnodes=layout.nnodes, source=source)


def asked_for() -> tuple[int, int]:
    """Return what ``--nproc`` and ``--nnodes`` are, 0 where they were not given."""
    names = ("MEMGATE_NPROC", "MEMGATE_NNODES")
    nproc, nnodes = (int(os.environ.get(name) or 0) for name in names)
    return nproc, nnodes


def check_layout(layout: Layout, source: str) -> None:
    """End the run if a launcher says something else than the caller; 0: it says nothing."""
    nproc, nnodes = asked_for()
    if nproc and nproc != layout.nproc:
        refuse(
            f"--nproc {nproc}, but {source} starts {layout.nproc} processes on a node: leave"
            f" --nproc out, or give {source} the same number"
        )
    if nnodes and layout.nnodes and nnodes != layout.nnodes:
        refuse(
            f"--nnodes {nnodes}, but {source} is for {_count(layout.nnodes, 'node')}: leave"
            f" --nnodes out, or give {source} the same number"
        )


def refuse(message: str) -> None:
    """End the run: the question contradicts itself."""
    _tell(kind="refused", message=message)
    _exit(2)


def pass_or_wait(place: RankPlace, chosen: int) -> None:
    """Return if this process is the rank that runs; otherwise wait, and end."""
    pid = os.getpid()
    if place.rank == chosen:
        os.environ[IS_RANK] = str(place.rank)
        _tell(kind="rank", pid=pid, rank=place.rank, world_size=place.world_size)
        return
    connection = _connect()
    if connection is not None:
        connection.ask(kind="waits", pid=pid, rank=place.rank, world_size=place.world_size)
    _exit(0)


def join_group(place: RankPlace) -> None:
    """Where a process joins a group: have it wait if it is another rank."""
    if place.world_size <= 1:
        return
    chosen = chosen_rank()
    if chosen is not None:
        pass_or_wait(place, chosen)
    elif IS_RANK in os.environ:
        _tell(kind="rank", pid=os.getpid(), rank=place.rank, world_size=place.world_size)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tell(**message: Any) -> None:
    connection = _connect()
    if connection is not None:
        connection.tell(**message)


def _connect() -> Connection | None:
    try:
        return Connection(Path(os.environ["MEMGATE_RUN_DIR"]))
    except OSError:  # the run has ended
        return None
