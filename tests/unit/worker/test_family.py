"""The memory of a process and of all that it started."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import psutil

from memgate.units import MIB
from memgate_worker.family import takes_more_than

SIZE = 96 * MIB


def _parent(told: Connection) -> None:
    """Take memory, and share it with three children."""
    taken = bytearray(b"x") * SIZE
    forked = multiprocessing.get_context("fork")
    ready = forked.Barrier(4)
    for _ in range(3):
        forked.Process(target=_child, args=(taken, ready), daemon=True).start()
    ready.wait(60)
    told.send("ready")
    told.recv()


def _child(taken: bytearray, ready: multiprocessing.synchronize.Barrier) -> None:
    sum(taken[::4096])  # its own view of pages that it shares
    ready.wait(60)
    ready.wait(60)


@contextmanager
def _family() -> Iterator[int]:
    ours, theirs = multiprocessing.Pipe()
    # not forked: a process of pytest's has much memory of its own
    process = multiprocessing.get_context("spawn").Process(target=_parent, args=(theirs,))
    process.start()
    assert ours.poll(60)
    yield process.pid or 0
    ours.send("end")
    process.join(60)


def test_pages_that_processes_share_count_once() -> None:
    """Workers of a data loader take little more than what was loaded before them."""
    with _family() as pid:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        resident = sum(member.memory_info().rss for member in family)

        assert resident > 4 * SIZE
        assert not takes_more_than(resident, pid)
        assert not takes_more_than(3 * SIZE, pid)
        assert takes_more_than(SIZE, pid)


def test_a_process_that_has_ended_takes_nothing() -> None:
    """It may end while we look."""
    with _family() as pid:
        pass

    assert not takes_more_than(0, pid)
