"""Rows of the native tracker -> Timeline events.

``native/tracker.cpp`` makes the rows, and ``memgate_hook.tracker`` reads them in the job's process.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from memgate.timeline import Alloc, EmptyCache, Free, RecordStream, SetFraction, TimelineEvent

_ROW = struct.Struct("=qqqq")

#: addresses of a device are above its number plus one, shifted by this; see ``native/device.h``
_ADDRESS_BITS = 56

#: a stream that nothing is allocated on: stands for "some other stream"
_OTHER_STREAM = 10_000


class _Action(IntEnum):
    """PyTorch's ``TraceEntry::Action``, as far as it matters; the same in torch 2.6 and 2.14."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_FREE = 4
    SEGMENT_UNMAP = 6


_GIVES_BACK = frozenset({_Action.SEGMENT_FREE, _Action.SEGMENT_UNMAP})


class Row(NamedTuple):
    """One event of the real allocator."""

    action: int
    address: int
    size_bytes: int
    #: below zero: a stream of a private pool
    stream: int


def read_rows(data: bytes) -> list[Row]:
    """Read what ``memgate_hook.tracker`` recorded.

    Raises:
        struct.error: if it ends within a row.
    """
    return [Row(*fields) for fields in _ROW.iter_unpack(data)]


class Allocation(NamedTuple):
    """A memory block of the run: where its rows are."""

    block_id: int
    address: int
    #: rows at which it was allocated and freed; None: it outlived the run
    begin: int
    end: int | None


class Events(NamedTuple):
    """What the rows say."""

    events: list[TimelineEvent]
    blocks: list[Allocation]
    #: how many events there were before each row, and in the end
    num_before: list[int]
    #: streams that stand for private pools
    private_streams: frozenset[int] = frozenset()


def to_events(
    rows: Sequence[Row], fractions: Sequence[tuple[int, SetFraction]] = (), device: int = 0
) -> Events:
    """Turn a device's rows into the events of a timeline and the list of its blocks.

    A free that completes later than it was requested waited for another stream; PyTorch does not
    say which, so a separate stream stands for it. Segments are left to the simulator, but on a
    device with ample memory they are given back only if the program asked for it, or a private pool
    is no longer used.
    """
    events: list[TimelineEvent] = []
    blocks: list[Allocation] = []
    live: dict[int, int] = {}
    streams: dict[int, int] = {}
    to_come = list(reversed(fractions))
    num_before: list[int] = []
    for position, row in enumerate(rows):
        num_before.append(len(events))
        while to_come and to_come[-1][0] <= position:
            events.append(to_come.pop()[1])
        if row.address >> _ADDRESS_BITS not in (0, device + 1):
            continue
        if row.action == _Action.ALLOC:
            block_id = len(blocks)
            live[row.address] = block_id
            stream = streams.setdefault(row.stream, len(streams))
            blocks.append(Allocation(block_id, row.address, position, None))
            events.append(Alloc(block_id, row.size_bytes, stream))
        elif row.action == _Action.FREE_REQUESTED:
            block_id = live.pop(row.address)
            blocks[block_id] = blocks[block_id]._replace(end=position)
            if not _completes_at_once(rows, position):
                events.append(RecordStream(block_id, _OTHER_STREAM))
            events.append(Free(block_id))
        elif row.action in _GIVES_BACK:
            is_private = row.stream < 0
            emptied = EmptyCache(
                streams.setdefault(row.stream, len(streams)) if is_private else None
            )
            if not events or events[-1] != emptied:
                events.append(emptied)
    private = frozenset(number for stream, number in streams.items() if stream < 0)
    return Events(events, blocks, [*num_before, len(events)], private)


def _completes_at_once(rows: Sequence[Row], position: int) -> bool:
    following = rows[position + 1] if position + 1 < len(rows) else None
    return (
        following is not None
        and following.action == _Action.FREE_COMPLETED
        and following.address == rows[position].address
    )
