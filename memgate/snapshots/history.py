"""DeviceSnapshot -> Start: what there was before the first event, by undoing the history.

The file says what is there at the end. From the last event to the first, each is undone: what was
allocated is taken away, what was freed is put back. What is left was there at the start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec import Struct

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.sizes import MIN_BLOCK_SIZE, SMALL_BUFFER, round_size, should_split
from memgate.snapshots.origins import Origin
from memgate.snapshots.snapshot import (
    DEFAULT_POOL,
    Block,
    DeviceSnapshot,
    Event,
    PoolId,
    Segment,
    TraceAction,
)


class StartBlock(Struct, frozen=True, gc=False):
    """A block that was in use before the first event."""

    address: int
    requested_bytes: int
    #: None: it was freed later, and the file does not say how much it took
    size_bytes: int | None
    stream: int
    pool: PoolId
    #: the program had freed it, and a stream still used it
    is_waited_for: bool
    #: of where it was allocated; if there is one, it was recorded, and the record is lost
    origin: Origin | None


class Piece(Struct, frozen=True, gc=False):
    """A part of a segment at the start."""

    size_bytes: int
    #: None: it was free
    block: StartBlock | None


class StartSegment(Struct, frozen=True, gc=False):
    """A segment at the start, cut as it was."""

    stream: int
    is_small: bool
    is_expandable: bool
    pool: PoolId
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What there was before the first event."""

    segments: tuple[StartSegment, ...]
    #: blocks that are in none of the segments: the file contradicts itself
    stray: tuple[StartBlock, ...]
    #: the most that was reserved, from the first event to the last
    peak_reserved_bytes: int
    #: events that do not fit to what the file says of the end
    num_contradictions: int

    @property
    def blocks(self) -> list[StartBlock]:
        """All of them."""
        pieces = (piece.block for segment in self.segments for piece in segment.pieces)
        return [*(block for block in pieces if block is not None), *self.stray]


def find_start(snapshot: DeviceSnapshot, config: AllocatorConfig) -> Start:
    """Undo the history of a device."""
    undoing = _Undoing(snapshot.segments)
    for event in reversed(snapshot.events):
        undoing.undo(event)
    blocks = sorted(undoing.blocks.values(), key=lambda block: block.address)
    cutting = _Cutting(blocks, config)
    segments = (*cutting.cut_plain(undoing.plain), *cutting.cut_expandable(undoing.arenas))
    return Start(
        segments=tuple(segments),
        stray=tuple(cutting.stray(segments)),
        peak_reserved_bytes=undoing.peak_reserved_bytes,
        num_contradictions=undoing.num_contradictions,
    )


class Arena:
    """The expandable memory of one stream and pool; stretches of it have memory behind them."""

    __slots__ = ("address", "mapped_bytes", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.address = segment.address
        self.mapped_bytes = 0

    @property
    def key(self) -> tuple[int, PoolId, bool]:
        """Expandable memory with the same key is of the same arena."""
        return self.segment.stream, self.segment.pool, self.segment.is_small


class _Undoing:
    """What there is, going backwards."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.blocks: dict[int, StartBlock] = {}
        self.plain: dict[int, Segment] = {}
        self.arenas: list[Arena] = []
        self.num_contradictions = 0
        by_key: dict[tuple[int, PoolId, bool], Arena] = {}
        for segment in segments:
            self.blocks.update((block.address, _at_end(block, segment)) for block in segment.blocks)
            if segment.is_expandable:
                arena = Arena(segment)
                arena = by_key.setdefault(arena.key, arena)
                arena.mapped_bytes += segment.size_bytes
            else:
                self.plain[segment.address] = segment
        self.arenas = sorted(by_key.values(), key=lambda arena: arena.address)
        self._starts = [arena.address for arena in self.arenas]
        self.reserved = sum(segment.size_bytes for segment in segments)
        self.peak_reserved_bytes = self.reserved

    def undo(self, event: Event) -> None:
        match event.action:
            case TraceAction.ALLOC:
                self._expect(self.blocks.pop(event.address, None) is not None)
            case TraceAction.FREE_COMPLETED:
                self._expect(event.address not in self.blocks)
                self.blocks[event.address] = _freed(event, is_waited_for=True)
            case TraceAction.FREE_REQUESTED:
                known = self.blocks.get(event.address)
                self._expect(known is not None and known.is_waited_for)
                self.blocks[event.address] = _freed(event, is_waited_for=False)
            case TraceAction.SEGMENT_ALLOC:
                self._expect(self.plain.pop(event.address, None) is not None)
                self._reserve(-event.size_bytes)
            case TraceAction.SEGMENT_FREE:
                self._expect(event.address not in self.plain)
                self.plain[event.address] = _given_back(event)
                self._reserve(event.size_bytes)
            case TraceAction.SEGMENT_MAP:
                self._map(event, -event.size_bytes)
            case TraceAction.SEGMENT_UNMAP:
                self._map(event, event.size_bytes)
            case _:  # out of memory: nothing changed
                pass

    def _map(self, event: Event, change: int) -> None:
        self._reserve(change)
        self._expect(bool(self.arenas))
        if self.arenas:
            at = max(0, bisect_right(self._starts, event.address) - 1)
            arena = self.arenas[at]
            arena.mapped_bytes += change
            arena.address = self._starts[at] = min(arena.address, event.address)

    def _reserve(self, change: int) -> None:
        self.reserved += change
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved)

    def _expect(self, holds: bool) -> None:
        self.num_contradictions += not holds


def _at_end(block: Block, segment: Segment) -> StartBlock:
    return StartBlock(
        address=block.address,
        requested_bytes=block.requested_bytes,
        size_bytes=block.size_bytes,
        stream=segment.stream,
        pool=segment.pool,
        is_waited_for=block.is_waited_for,
        origin=block.origin,
    )


def _freed(event: Event, *, is_waited_for: bool) -> StartBlock:
    return StartBlock(
        address=event.address,
        requested_bytes=event.size_bytes,
        size_bytes=None,
        stream=event.stream,
        pool=event.pool or DEFAULT_POOL,
        is_waited_for=is_waited_for,
        origin=None,
    )


def _given_back(event: Event) -> Segment:
    return Segment(
        address=event.address,
        size_bytes=event.size_bytes,
        stream=event.stream,
        # no request of the large pool makes a segment as small as those of the small pool
        is_small=event.size_bytes <= SMALL_BUFFER,
        is_expandable=False,
        pool=event.pool or DEFAULT_POOL,
        blocks=(),
    )


class _Cutting:
    """Cuts segments at the blocks that lie in them."""

    def __init__(self, blocks: list[StartBlock], config: AllocatorConfig) -> None:
        self._blocks = blocks
        self._addresses = [block.address for block in blocks]
        self._config = config

    def cut_plain(self, segments: dict[int, Segment]) -> Iterator[StartSegment]:
        for address in sorted(segments):
            segment = segments[address]
            yield from self._cut(segment, address, segment.end, segment.size_bytes)

    def cut_expandable(self, arenas: list[Arena]) -> Iterator[StartSegment]:
        """Take arenas as one stretch each: what is empty between two stretches is left out."""
        ends = (*(arena.address for arena in arenas[1:]), 2**64)
        for arena, end in zip(arenas, ends, strict=False):
            if arena.mapped_bytes > 0:
                yield from self._cut(arena.segment, arena.address, end, arena.mapped_bytes)

    def _cut(self, segment: Segment, begin: int, end: int, size: int) -> Iterator[StartSegment]:
        """Cut a segment; if that does not come out even, it is left out, and its blocks stray."""
        inside = self._inside(begin, end)
        free = size - sum(map(self._taken, inside))
        pieces: list[Piece] = []
        at = begin
        for block in inside:
            gap = block.address - at
            if 0 < gap <= free:
                free -= gap
                self._leave(pieces, gap, segment)
            pieces.append(Piece(self._taken(block), block))
            at = block.address + self._taken(block)
        if free > 0:
            self._leave(pieces, free, segment)
        sizes = [piece.size_bytes for piece in pieces]
        if sum(sizes) == size and all(one and one % MIN_BLOCK_SIZE == 0 for one in sizes):
            yield StartSegment(
                segment.stream, segment.is_small, segment.is_expandable, segment.pool, tuple(pieces)
            )

    def _leave(self, pieces: list[Piece], gap: int, segment: Segment) -> None:
        """Leave a gap free; or to the block before it, if it was too small to be split off."""
        last = pieces[-1] if pieces else Piece(0, None)
        if last.block is None or should_split(gap, last.size_bytes, segment.is_small, self._config):
            pieces.append(Piece(gap, None))
        else:
            pieces[-1] = Piece(last.size_bytes + gap, last.block)

    def _taken(self, block: StartBlock) -> int:
        if block.size_bytes is not None:
            return block.size_bytes
        return round_size(block.requested_bytes, self._config)

    def _inside(self, begin: int, end: int) -> list[StartBlock]:
        first = bisect_right(self._addresses, begin - 1)
        return self._blocks[first : bisect_right(self._addresses, end - 1)]

    def stray(self, segments: Iterable[StartSegment]) -> Iterator[StartBlock]:
        placed = {
            piece.block.address
            for segment in segments
            for piece in segment.pieces
            if piece.block is not None
        }
        return (block for block in self._blocks if block.address not in placed)
