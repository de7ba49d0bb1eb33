"""DeviceSnapshot, Start -> Timeline: the history of a device as events that can be replayed.

Sizes are as the program asked for them: the allocator rounds them again. What the allocator did by
itself, segments taken and given back, is left out: a replay does that, on whatever device. But
what the program made it do stays, ``torch.cuda.empty_cache()`` and the end of a private pool.

Note [What a history does not say]
- ``record_stream`` is not recorded; but a block whose free is completed later than it was requested
  was used elsewhere, and waits in the replay just as long.
- ``empty_cache`` is not recorded either; but segments are given back, and the stack says by whom.
  Without stacks it was the program, unless a segment is taken right after, or cannot be: then it
  was pressure, which is left to the replay.
- torch 2.6 does not say to which pool an event belongs: the segment at the end does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from memgate.capacity import AMPLE_BYTES
from memgate.snapshots.history import Start, StartBlock
from memgate.snapshots.labels import find_label
from memgate.snapshots.origins import Origin
from memgate.snapshots.snapshot import (
    DEFAULT_POOL,
    DeviceSnapshot,
    Event,
    PoolId,
    Segment,
    TraceAction,
)
from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    Phase,
    PhaseStart,
    RecordStream,
    ResidentSegment,
    StreamsDone,
    Timeline,
    TimelineEvent,
    make_phases,
)

#: what the allocator does between giving memory back and taking other
_GIVING_BACK = (TraceAction.SEGMENT_FREE, TraceAction.SEGMENT_UNMAP, TraceAction.FREE_COMPLETED)
#: and what follows if it was short of memory
_TAKING = (TraceAction.SEGMENT_ALLOC, TraceAction.SEGMENT_MAP, TraceAction.OOM)

#: of a request that failed: more than any GPU has, whatever a program asked for by mistake
_MOST_TRIED_BYTES = AMPLE_BYTES // 2

_PHASES = {
    Origin.MODEL: Phase.BETWEEN,
    Origin.FORWARD: Phase.FORWARD,
    Origin.BACKWARD: Phase.BACKWARD,
    Origin.OPTIMIZER: Phase.OPTIMIZER,
}


def make_timeline(snapshot: DeviceSnapshot, start: Start) -> Timeline:
    """Turn what happened on a device into a timeline.

    A request at which the program ended for lack of memory is its last event. One that it survived
    is left out: it can do without.
    """
    history = snapshot.events
    building = _Building(_Streams(snapshot.segments))
    residents = building.begin(start)
    last = {event.action: at for at, event in enumerate(history)}
    died_at = last.get(TraceAction.OOM, -1)
    if died_at < last.get(TraceAction.ALLOC, -1):
        died_at = -1  # it went on
    is_pressure = _find_pressure(history)
    for at, event in enumerate(history):
        match event.action:
            case TraceAction.ALLOC:
                building.alloc(event)
            case TraceAction.FREE_REQUESTED:
                after = history[at + 1] if at + 1 < len(history) else None
                building.free(event, is_done=after is not None and _completes(after, event))
            case TraceAction.FREE_COMPLETED:
                building.finish(event)
            case TraceAction.SEGMENT_FREE | TraceAction.SEGMENT_UNMAP:
                building.give_back(event, is_pressure=is_pressure[at])
            case TraceAction.OOM if at == died_at:
                building.alloc(event)
            case _:
                pass
    return building.finished(residents)


def _completes(event: Event, request: Event) -> bool:
    return event.action is TraceAction.FREE_COMPLETED and event.address == request.address


def _find_pressure(history: Sequence[Event]) -> list[bool]:
    """Tell of each event whether the next that gives nothing back takes memory."""
    found = [False] * len(history)
    takes = False
    for at in range(len(history) - 1, -1, -1):
        found[at] = takes
        if history[at].action not in _GIVING_BACK:
            takes = history[at].action in _TAKING
    return found


class _Streams:
    """Numbers streams; those of private pools get numbers of their own."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        #: of the default pool's default stream, and of one that uses what others have freed
        self._numbers: dict[tuple[PoolId, int], int] = {(DEFAULT_POOL, 0): 0, (DEFAULT_POOL, -1): 1}
        self._private = [one for one in segments if one.pool != DEFAULT_POOL]
        self._starts = [one.address for one in self._private]

    def number(self, pool: PoolId, stream: int) -> int:
        return self._numbers.setdefault((pool, stream), len(self._numbers))

    def of(self, event: Event) -> int:
        return self.number(event.pool or self._pool_at(event.address), event.stream)

    @property
    def elsewhere(self) -> int:
        """A stream that is none of those in the file."""
        return self.number(DEFAULT_POOL, -1)

    def private(self) -> frozenset[int]:
        numbers = self._numbers.items()
        return frozenset(number for (pool, _), number in numbers if pool != DEFAULT_POOL)

    def _pool_at(self, address: int) -> PoolId:
        at = bisect_right(self._starts, address) - 1
        if at >= 0 and address < self._private[at].end:
            return self._private[at].pool
        return DEFAULT_POOL


class _Building:
    """A timeline while it grows."""

    def __init__(self, streams: _Streams) -> None:
        self._streams = streams
        self._events: list[TimelineEvent] = []
        #: of each block, by id: where it was allocated, where it was freed
        self._origins: list[Origin | None] = []
        self._ends: dict[int, Origin | None] = {}
        #: blocks in use, and those that wait for a stream, by address
        self._live: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._phases: list[PhaseStart] = []
        self._is_pending = False

    def begin(self, start: Start) -> tuple[ResidentSegment, ...]:
        """Allocate what was there before the first event."""
        residents = []
        for segment in start.segments:
            stream = self._streams.number(segment.pool, segment.stream)
            pieces = tuple(
                (
                    None if piece.block is None else self._place(piece.block, stream),
                    piece.size_bytes,
                )
                for piece in segment.pieces
            )
            residents.append(
                ResidentSegment(stream, segment.is_small, segment.is_expandable, pieces)
            )
        for block in start.stray:
            self._place(block, self._streams.number(block.pool, block.stream))
        for block in start.blocks:
            if block.is_waited_for:
                self._wait(block.address, None)
        return tuple(residents)

    def alloc(self, event: Event) -> None:
        if event.action is TraceAction.ALLOC and event.address in self._live:
            self._release(self._live.pop(event.address), None)  # its free is not in the history
        phase = None if event.origin is None else _PHASES.get(event.origin)
        if phase is not None:
            self._phases.append(PhaseStart(len(self._events), phase))
        stream = self._streams.of(event)
        size = min(event.size_bytes, _MOST_TRIED_BYTES)
        block_id = self._add(size, stream, event.origin)
        if event.action is TraceAction.ALLOC:
            self._live[event.address] = block_id

    def free(self, event: Event, *, is_done: bool) -> None:
        if event.address not in self._live:
            return
        if is_done:
            self._release(self._live.pop(event.address), event.origin)
        else:
            self._wait(event.address, event.origin)

    def finish(self, event: Event) -> None:
        block_id = self._waiting.pop(event.address, None)
        if block_id is not None:
            self._events.append(StreamsDone(block_id))

    def give_back(self, event: Event, *, is_pressure: bool) -> None:
        if event.pool not in (None, DEFAULT_POOL):
            given_back = EmptyCache(self._streams.of(event))
        elif event.origin is Origin.EMPTY_CACHE or (event.origin is None and not is_pressure):
            given_back = EmptyCache()
        else:
            return
        if not self._events or self._events[-1] != given_back:
            self._events.append(given_back)

    def finished(self, residents: tuple[ResidentSegment, ...]) -> Timeline:
        labels = (
            find_label(origin, self._ends.get(block_id), is_freed=block_id in self._ends)
            for block_id, origin in enumerate(self._origins)
        )
        return Timeline(
            events=tuple(self._events),
            labels=tuple(labels),
            phases=make_phases(self._phases, len(self._events)),
            residents=residents,
            private_streams=self._streams.private(),
        )

    def _place(self, block: StartBlock, stream: int) -> int:
        block_id = self._add(block.requested_bytes, stream, block.origin)
        self._live[block.address] = block_id
        return block_id

    def _add(self, size: int, stream: int, origin: Origin | None) -> int:
        block_id = len(self._origins)
        self._events.append(Alloc(block_id, size, stream))
        self._origins.append(origin)
        return block_id

    def _release(self, block_id: int, origin: Origin | None) -> None:
        self._events.append(Free(block_id))
        self._ends[block_id] = origin

    def _wait(self, address: int, origin: Origin | None) -> None:
        """Free a block that another stream still uses."""
        if not self._is_pending:
            self._is_pending = True
            self._events.append(EventsPending(1))
        block_id = self._live.pop(address)
        self._events.append(RecordStream(block_id, self._streams.elsewhere))
        self._release(block_id, origin)
        self._waiting[address] = block_id
