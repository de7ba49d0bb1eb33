"""Events, labels and phases <-> columns of bytes.

An event is spread over the columns of ``EventsPart``; one that lacks a property has no entry in the
property's column. Numbers are little-endian, 32 bits. Iterations of a job repeat each other, and in
columns the repetition is byte for byte, so that packing finds it.

Reading checks what the types of ``document`` cannot: that columns match each other, and that the
events are those that a program can make. All of it is counted before anything is built.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import assert_never

from memgate.errors import TimelineFileError
from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    Label,
    Phase,
    PhaseStart,
    RecordStream,
    SetFraction,
    StreamsDone,
    TimelineEvent,
)
from memgate.timeline_file.document import EventsPart, LabelPart, LabelsPart, PhasesPart

#: by their numbers in ``EventsPart.actions``
ACTIONS: tuple[type[TimelineEvent], ...] = (
    Alloc,
    Free,
    RecordStream,
    EventsPending,
    StreamsDone,
    EmptyCache,
    SetFraction,
)
_ALLOC, _FREE, _RECORD_STREAM, _EVENTS_PENDING, _STREAMS_DONE, _EMPTY_CACHE, _FRACTION = range(7)

#: by their numbers in ``PhasesPart.kinds``
PHASES = (Phase.BETWEEN, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)

_MAX_BLOCK_ID = (1 << 31) - 1
_WIDTH = 4


def broken(field: str, value: object, rule: str) -> TimelineFileError:
    """Make the error about a value that breaks a rule of the format."""
    shown = f" is {value}" if value != "" else ""
    return TimelineFileError(f"{field}{shown}: {rule}; record it again: memgate run -o FILE")


def pack_column(numbers: Sequence[int], *, signed: bool = False) -> bytes:
    """Turn numbers into a column."""
    return struct.pack(f"<{len(numbers)}{'i' if signed else 'I'}", *numbers)


def unpack_column(field: str, column: bytes, *, signed: bool = False) -> tuple[int, ...]:
    """Turn a column back into numbers.

    Raises:
        TimelineFileError: if it ends within a number.
    """
    count, rest = divmod(len(column), _WIDTH)
    if rest:
        raise broken(field, f"{len(column)} bytes", f"a column is of numbers of {_WIDTH} bytes")
    return struct.unpack(f"<{count}{'i' if signed else 'I'}", column)


def look_up(field: str, column: bytes, known: Sequence[object]) -> tuple[int, ...]:
    """Turn a column of indices into numbers.

    Raises:
        TimelineFileError: if one of them is beyond what it is an index of.
    """
    indices = unpack_column(field, column)
    if indices and max(indices) >= len(known):
        raise broken(field, max(indices), f"an index is below {len(known)}")
    return indices


# --- events


def pack_events(events: Sequence[TimelineEvent]) -> EventsPart:
    """Turn events into columns."""
    numbers = {kind: number for number, kind in enumerate(ACTIONS)}
    sizes: dict[int, int] = {}
    streams: dict[int, int] = {}
    blocks: list[int] = []
    size_indices: list[int] = []
    stream_indices: list[int] = []
    values: list[int | float | None] = []
    for event in events:
        match event:
            case Alloc(block_id, size_bytes, stream):
                blocks.append(block_id)
                size_indices.append(sizes.setdefault(size_bytes, len(sizes)))
                stream_indices.append(streams.setdefault(stream, len(streams)))
            case Free(block_id) | StreamsDone(block_id):
                blocks.append(block_id)
            case RecordStream(block_id, stream):
                blocks.append(block_id)
                stream_indices.append(streams.setdefault(stream, len(streams)))
            case EventsPending(value) | EmptyCache(value) | SetFraction(value):
                values.append(value)
            case _:  # pragma: no cover
                assert_never(event)
    deltas = [after - before for before, after in pairwise([0, *blocks])]
    return EventsPart(
        actions=bytes(numbers[type(event)] for event in events),
        blocks=pack_column(deltas, signed=True),
        sizes=list(sizes),
        size_indices=pack_column(size_indices),
        streams=list(streams),
        stream_indices=pack_column(stream_indices),
        values=values,
    )


def unpack_events(part: EventsPart) -> tuple[TimelineEvent, ...]:
    """Turn columns back into events.

    Raises:
        TimelineFileError: if the columns do not match, or no program could make the events.
    """
    _check_actions(part)
    deltas = unpack_column("events.blocks", part.blocks, signed=True)
    blocks = tuple(accumulate(deltas))
    if blocks and not 0 <= min(blocks) <= max(blocks) <= _MAX_BLOCK_ID:
        worst = min(blocks) if min(blocks) < 0 else max(blocks)
        raise broken("events.blocks", worst, f"a block has a number up to {_MAX_BLOCK_ID}, from 0")
    sizes = look_up("events.size_indices", part.size_indices, part.sizes)
    streams = look_up("events.stream_indices", part.stream_indices, part.streams)
    return tuple(
        _build(
            part.actions,
            iter(blocks).__next__,
            map(part.sizes.__getitem__, sizes).__next__,
            map(part.streams.__getitem__, streams).__next__,
            iter(part.values).__next__,
        )
    )


def _check_actions(part: EventsPart) -> None:
    """Check that each column has an entry for each event that needs one, and no more."""
    unknown = part.actions.translate(None, bytes(range(len(ACTIONS))))
    if unknown:
        raise broken("events.actions", unknown[0], f"an action is below {len(ACTIONS)}")
    counts = [part.actions.count(action) for action in range(len(ACTIONS))]
    named = counts[_ALLOC] + counts[_FREE] + counts[_RECORD_STREAM] + counts[_STREAMS_DONE]
    valued = counts[_EVENTS_PENDING] + counts[_EMPTY_CACHE] + counts[_FRACTION]
    for field, found, wanted in (
        ("blocks", len(part.blocks) / _WIDTH, named),
        ("size_indices", len(part.size_indices) / _WIDTH, counts[_ALLOC]),
        ("stream_indices", len(part.stream_indices) / _WIDTH, counts[_ALLOC] + counts[2]),
        ("values", len(part.values), valued),
    ):
        if found != wanted:
            rule = f"the actions need {wanted} entries"
            raise broken(f"events.{field}", f"{found:g} entries long", rule)


def _build(
    actions: bytes,
    next_block: Callable[[], int],
    next_size: Callable[[], int],
    next_stream: Callable[[], int],
    next_value: Callable[[], int | float | None],
) -> Iterator[TimelineEvent]:
    live: set[int] = set()
    for index, action in enumerate(actions):
        if action == _ALLOC:
            block = next_block()
            if block in live:
                raise broken(f"event {index}", f"an allocation of {block}", "it is allocated")
            live.add(block)
            yield Alloc(block, next_size(), next_stream())
        elif action == _FREE:
            block = next_block()
            if block not in live:
                raise broken(f"event {index}", f"a free of {block}", "it is not allocated")
            live.remove(block)
            yield Free(block)
        elif action == _RECORD_STREAM:
            block = next_block()
            if block not in live:
                raise broken(f"event {index}", f"a use of {block}", "it is not allocated")
            yield RecordStream(block, next_stream())
        elif action == _STREAMS_DONE:
            yield StreamsDone(next_block())
        else:
            yield _build_rare(index, action, next_value())


def _build_rare(index: int, action: int, value: int | float | None) -> TimelineEvent:
    kind = ACTIONS[action].__name__
    if action == _EVENTS_PENDING:
        if value == 0 or value == 1:
            return EventsPending(1 if value else 0)
        raise broken(f"event {index} ({kind})", value, "pending is 0 or 1")
    if action == _EMPTY_CACHE:
        if value is None or (isinstance(value, int) and 0 <= value < 1 << 63):
            return EmptyCache(value)
        raise broken(f"event {index} ({kind})", value, "a stream is a whole number, or nil")
    if value is not None and 0 <= value <= 1:  # NaN is not
        return SetFraction(float(value))
    raise broken(f"event {index} ({kind})", value, "a fraction is between 0 and 1")


# --- labels and phases


def pack_labels(labels: Sequence[Label]) -> LabelsPart:
    """Turn labels into columns; ``labels`` are in the order of blocks."""
    known: dict[Label, int] = {}
    indices = [known.setdefault(label, len(known)) for label in labels]
    parts = [LabelPart(label.category, label.layer) for label in known]
    return LabelsPart(labels=parts, indices=pack_column(indices))


def unpack_labels(part: LabelsPart, events: EventsPart) -> tuple[Label, ...]:
    """Turn columns back into labels, one for each block or none at all.

    Raises:
        TimelineFileError: if some blocks have labels and others do not.
    """
    indices = look_up("labels.indices", part.indices, part.labels)
    blocks = accumulate(unpack_column("events.blocks", events.blocks, signed=True))
    num_blocks = 1 + max(blocks, default=-1)
    if indices and len(indices) < num_blocks:
        rule = f"there are none, or one for each of {num_blocks} blocks"
        raise broken("labels.indices", f"{len(indices)} entries long", rule)
    known = [Label(label.category, label.layer) for label in part.labels]
    return tuple(map(known.__getitem__, indices))


def pack_phases(phases: Sequence[PhaseStart]) -> PhasesPart:
    """Turn phases into columns."""
    return PhasesPart(
        starts=pack_column([start.event_index for start in phases]),
        kinds=bytes(PHASES.index(start.phase) for start in phases),
    )


def unpack_phases(part: PhasesPart, num_events: int) -> tuple[PhaseStart, ...]:
    """Turn columns back into phases.

    Raises:
        TimelineFileError: if they are not in order, or are beyond the events.
    """
    starts = unpack_column("phases.starts", part.starts)
    kinds = part.kinds
    if len(starts) != len(kinds):
        raise broken("phases.kinds", f"{len(kinds)} bytes", f"there are {len(starts)} phases")
    if kinds and max(kinds) >= len(PHASES):
        raise broken("phases.kinds", max(kinds), f"a phase is below {len(PHASES)}")
    if starts and starts[-1] >= num_events:
        raise broken("phases.starts", starts[-1], f"there are {num_events} events")
    for number, (before, after) in enumerate(pairwise(starts), start=1):
        if after <= before:
            raise broken(f"phases.starts[{number}]", after, f"it begins after {before}")
    if any(before == after for before, after in pairwise(kinds)):
        raise broken("phases.kinds", "", "a phase is another than the one before")
    return tuple(PhaseStart(start, PHASES[kind]) for start, kind in zip(starts, kinds, strict=True))
