"""The native core: the caching allocator and its player in C++, if they were built.

``native/`` has the sources, a counterpart to each module here. A timeline goes over in one call, as
one buffer, and stays there as columns; what a replay tells comes back as columns. The Python core
is the reference: where numbers exceed what 64 bits can hold, None is returned, and it is asked
instead.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol, cast

import msgspec

from memgate.allocator.config import UNLIMITED, AllocatorConfig
from memgate.allocator.device import AddressPolicy
from memgate.allocator.player import make_contradiction
from memgate.allocator.protocol import OutOfMemory, SegmentAction, SegmentInfo
from memgate.allocator.results import (
    Core,
    OnOom,
    OomEvent,
    Probe,
    Replay,
    SegmentEvent,
    find_reserved_changes,
)
from memgate.allocator.stats import DeviceStats
from memgate.allocator.window import BEYOND_BYTES
from memgate.timeline import Timeline

#: what an answer is: the problem, the number of events, the capacities from which on and below
#: which it holds; then, as bytes of 64-bit numbers: the counters, and columns of failed requests,
#: segment events, allocated and active bytes, segments
Answer = tuple[int, int, int, int, bytes, bytes, bytes, bytes, bytes, bytes]

_POLICIES = tuple(AddressPolicy)
_ACTIONS = tuple(SegmentAction)
#: by their numbers in ``native/replay.h``
_PROBLEMS = ("", "is already allocated", "is not allocated")


#: ``native/module.cpp`` has the same number: one that was built of other sources is not used
PROTOCOL = 1


class NativeCore(Protocol):
    """What ``native/module.cpp`` defines."""

    PROTOCOL: int
    #: a digest of what it was built from
    SOURCES: str

    def pack(self, timeline: bytes, /) -> object:
        """Turn a timeline, as MessagePack, into columns."""

    def replay(self, timeline: object, /, *question: object) -> Answer:
        """Replay packed columns."""


@cache
def load_core() -> NativeCore | None:
    """Return the native core; None if it was not built, or not for this platform or version."""
    try:
        core = cast(NativeCore, import_module("memgate.allocator.native.core"))
    except ImportError:
        return None
    return core if core.PROTOCOL == PROTOCOL else None


def pack_timeline(core: NativeCore, timeline: Timeline) -> NativeTimeline | None:
    """Hand a timeline over; None if it has numbers beyond 64 bits."""
    residents = [
        (segment.stream, segment.is_small, segment.is_expandable, segment.pieces)
        for segment in timeline.residents
    ]
    parts = (timeline.events, timeline.dispensable, timeline.private_streams, residents)
    try:
        return NativeTimeline(core, timeline, core.pack(msgspec.msgpack.encode(parts)))
    except OverflowError:
        return None


class NativeTimeline:
    """A timeline that the native core has."""

    def __init__(self, core: NativeCore, timeline: Timeline, packed: object) -> None:
        self._core = core
        self._timeline = timeline
        self._packed = packed

    def replay(
        self,
        config: AllocatorConfig,
        capacity_bytes: int,
        context_bytes: int,
        on_oom: OnOom,
        address_policy: AddressPolicy,
    ) -> Replay | None:
        """Return what ``Player.play`` does; None if the numbers are beyond the native core."""
        stops = on_oom is OnOom.STOP
        policy = _POLICIES.index(address_policy)
        answer = self._ask(config, capacity_bytes, context_bytes, policy, stops, True)
        return None if answer is None else _unpack(answer, config, capacity_bytes)

    def probe(self, config: AllocatorConfig, capacity_bytes: int) -> Probe | None:
        """Return what ``Player.probe`` does; None if the numbers are beyond the native core."""
        answer = self._ask(config, capacity_bytes, 0, 0, True, False)
        if answer is None:
            return None
        _, num_events, lowest_bytes, below_bytes, _, ooms, *_ = answer
        return Probe(not ooms, lowest_bytes, below_bytes, num_events)

    def _ask(
        self, config: AllocatorConfig, capacity: int, context: int, *rest: object
    ) -> Answer | None:
        sizes = (capacity, context, config.large_segment_size)
        rounding = config.max_non_split_rounding_size
        if max(sizes) > BEYOND_BYTES or max(config.max_split_size, rounding) > UNLIMITED:
            return None
        try:
            answer = self._core.replay(
                self._packed,
                config.max_split_size,
                rounding,
                config.garbage_collection_threshold,
                array("q", config.roundup_power2_divisions).tobytes(),
                config.expandable_segments,
                config.large_segment_size,
                config.per_process_memory_fraction,
                config.throw_on_cudamalloc_oom,
                capacity,
                context,
                *rest,
            )
        except OverflowError:
            return None
        problem, at, *_ = answer
        if problem:
            event = self._timeline.events[at]
            block_id = event.block_id  # type: ignore[union-attr]  # only those contradict
            raise make_contradiction(at, event, f"id {block_id} {_PROBLEMS[problem]}")
        return answer


def _unpack(answer: Answer, config: AllocatorConfig, capacity_bytes: int) -> Replay:
    _, num_events, lowest_bytes, below_bytes, stats, ooms, events, *series, segments = answer
    segment_events = tuple(
        SegmentEvent(index, _ACTIONS[action], size, stream)
        for index, action, size, stream in _rows(events, 4)
    )
    allocated, active = (array("q", column) for column in series)
    return Replay(
        num_events=num_events,
        stats=DeviceStats.from_row(array("q", stats)),
        ooms=tuple(_unpack_oom(row, config, capacity_bytes) for row in _rows(ooms, 8)),
        segment_events=segment_events,
        reserved_changes=find_reserved_changes(segment_events),
        allocated_series=allocated,
        active_series=active,
        final_segments=tuple(map(_unpack_segment, _rows(segments, 8))),
        lowest_bytes=lowest_bytes,
        below_bytes=below_bytes,
        core=Core.NATIVE,
    )


def _rows(column: bytes, width: int) -> Iterator[Sequence[int]]:
    numbers = iter(memoryview(column).cast("q").tolist())
    return zip(*[numbers] * width, strict=True)


def _unpack_oom(row: Sequence[int], config: AllocatorConfig, capacity_bytes: int) -> OomEvent:
    index, requested, tried, free, allowed, allocated, reserved, is_rejected = row
    details = OutOfMemory(
        requested_bytes=requested,
        tried_bytes=tried,
        capacity_bytes=capacity_bytes,
        free_bytes=free,
        allowed_bytes=None if allowed < 0 else allowed,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        advises_expandable_segments=not config.expandable_segments,
        rejected_in_advance=bool(is_rejected),
    )
    return OomEvent(index, details)


def _unpack_segment(row: Sequence[int]) -> SegmentInfo:
    address, total, allocated, active, is_large, is_expandable, stream, num_blocks = row
    return SegmentInfo(
        address=address,
        total_size=total,
        allocated_size=allocated,
        active_size=active,
        is_large=bool(is_large),
        is_expandable=bool(is_expandable),
        stream=stream,
        num_blocks=num_blocks,
    )
