"""Stage 5: Timeline -> Replay. Feeds a program's events to an allocator and records the results.

It decides nothing about memory: that is the allocator's job. It tracks which block belongs to which
id, what happened at which event, and where the program would have died.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, assert_never

from memgate.allocator.allocators import make_allocator
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import AddressPolicy, Device
from memgate.allocator.protocol import Allocator, OutOfMemory, SegmentAction, SegmentInfo
from memgate.allocator.stats import DeviceStats
from memgate.errors import TimelineError
from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    RecordStream,
    SetFraction,
    StreamsDone,
    Timeline,
    TimelineEvent,
)


class OnOom(StrEnum):
    """What the program does when a request fails."""

    #: it dies: the rest of the timeline never happens
    STOP = "stop"
    #: it catches the error and goes on without that block
    CONTINUE = "continue"


class SegmentEvent(NamedTuple):
    """Memory that came from the device or went back to it, and at which event."""

    event_index: int
    action: SegmentAction
    size_bytes: int
    stream: int


class ReservedChange(NamedTuple):
    """What is reserved from an event on."""

    event_index: int
    reserved_bytes: int


class OomEvent(NamedTuple):
    """A request that failed, and at which event."""

    event_index: int
    details: OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a timeline did to an allocator."""

    #: events that happened; fewer than the timeline has if the program died
    num_events: int
    #: counters at the end, peaks included
    stats: DeviceStats
    ooms: tuple[OomEvent, ...]
    segment_events: tuple[SegmentEvent, ...]
    reserved_changes: tuple[ReservedChange, ...]
    #: bytes held by the program after each event
    allocated_series: Sequence[int]
    #: bytes held by the program or waited for by a stream after each event
    active_series: Sequence[int]
    final_segments: tuple[SegmentInfo, ...]

    @property
    def peak_reserved_bytes(self) -> int:
        """The most memory ever taken from the device."""
        return self.stats.all.peak_reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The most memory ever held by the program."""
        return self.stats.all.peak_allocated_bytes

    @property
    def oom(self) -> OomEvent | None:
        """The first request that failed, if any did."""
        return self.ooms[0] if self.ooms else None


def replay(
    timeline: Timeline,
    config: AllocatorConfig,
    capacity_bytes: int,
    *,
    context_bytes: int = 0,
    on_oom: OnOom = OnOom.STOP,
    address_policy: AddressPolicy = AddressPolicy.UP,
    allocator_name: str = "caching",
) -> Replay:
    """Run a timeline on a device of ``capacity_bytes``, of which others hold ``context_bytes``.

    Raises:
        TimelineError: if the events contradict each other, such as a free of an unknown id.
    """
    device = Device(
        capacity_bytes=capacity_bytes, context_bytes=context_bytes, address_policy=address_policy
    )
    return _Player(config, device, on_oom, allocator_name, timeline).play()


def survives(timeline: Timeline, config: AllocatorConfig, capacity_bytes: int) -> bool:
    """Say whether a timeline runs to its end: what ``replay`` would say, without recording it.

    Raises:
        TimelineError: if the events contradict each other.
    """
    device = Device(capacity_bytes=capacity_bytes)
    return _Player(config, device, OnOom.STOP, "caching", timeline).survive()


class _Player:
    """The state of a replay while it runs."""

    def __init__(
        self,
        config: AllocatorConfig,
        device: Device,
        on_oom: OnOom,
        allocator_name: str,
        timeline: Timeline,
    ) -> None:
        self.on_oom = on_oom
        self.events = timeline.events
        self.dispensable = timeline.dispensable
        self.index = 0
        #: the block of each id the program holds; None for zero bytes
        self.live: dict[int, Any] = {}
        #: ids whose request failed: they never lived, and freeing them does nothing
        self.failed: set[int] = set()
        #: blocks that other streams use and that ``StreamsDone`` will name, by id
        self.used_elsewhere: dict[int, Any] = {}
        self.last_user: dict[Any, int] = {}
        self.to_be_done = {event.block_id for event in self.events if type(event) is StreamsDone}
        self.ooms: list[OomEvent] = []
        self.segment_events: list[SegmentEvent] = []
        # last: an allocator may take memory as soon as it exists
        self.allocator: Allocator[Any] = make_allocator(
            allocator_name, config, device, self._record_trace
        )
        self.allocator.keep_cache(timeline.private_streams)
        #: blocks that are there before the first event
        self.residents = dict(self.allocator.adopt(timeline.residents))

    def play(self) -> Replay:
        """Feed the events to the allocator, all of them or until the program dies."""
        totals = self.allocator.stats.all
        allocated_series, active_series = array("q"), array("q")
        for index, event in enumerate(self.events):
            self.index = index
            if isinstance(event, Alloc):
                self._alloc(event)
            elif isinstance(event, Free):
                self._free(event)
            else:
                self._handle_rare(event)
            allocated = totals.allocated_bytes
            allocated_series.append(allocated)
            active_series.append(allocated + totals.waiting_bytes)
            if self.ooms and self.on_oom is OnOom.STOP:
                break
        return Replay(
            num_events=len(allocated_series),
            stats=self.allocator.stats,
            ooms=tuple(self.ooms),
            segment_events=tuple(self.segment_events),
            reserved_changes=_reserved_changes(self.segment_events),
            allocated_series=allocated_series,
            active_series=active_series,
            final_segments=self.allocator.snapshot(),
        )

    def survive(self) -> bool:
        """Feed the events to the allocator until the program dies; say whether it lives."""
        for index, event in enumerate(self.events):
            self.index = index
            if isinstance(event, Alloc):
                self._alloc(event)
                if self.ooms:
                    return False
            elif isinstance(event, Free):
                self._free(event)
            else:
                self._handle_rare(event)
        return True

    def _alloc(self, event: Alloc) -> None:
        block_id, size = event.block_id, event.size_bytes
        if block_id in self.live:
            raise self._contradiction(event, f"id {block_id} is already allocated")
        if block_id in self.residents:
            self.live[block_id] = block = self.residents.pop(block_id)
            self.allocator.hand_out(block, size)
            return
        block = self.allocator.malloc(size, event.stream) if size else None
        if isinstance(block, OutOfMemory):
            if block_id not in self.dispensable:
                self.ooms.append(OomEvent(self.index, block))
            self.failed.add(block_id)
        else:
            self.live[block_id] = block

    def _free(self, event: Free) -> None:
        if event.block_id in self.live:
            block = self.live.pop(event.block_id)
            if block is not None:
                self.allocator.free(block)
        elif event.block_id not in self.failed:
            raise self._contradiction(event, f"id {event.block_id} is not allocated")

    def _handle_rare(
        self, event: RecordStream | EventsPending | StreamsDone | EmptyCache | SetFraction
    ) -> None:
        match event:
            case RecordStream(block_id, stream):
                if block_id not in self.live and block_id not in self.failed:
                    raise self._contradiction(event, f"id {block_id} is not allocated")
                if self.live.get(block_id) is not None:
                    self.allocator.record_stream(self.live[block_id], stream)
                    if block_id in self.to_be_done:
                        self.used_elsewhere[block_id] = self.live[block_id]
                        self.last_user[self.live[block_id]] = block_id
            case EventsPending(pending):
                self.allocator.set_events_pending(bool(pending))
            case StreamsDone(block_id):
                self._finish_streams(block_id)
            case EmptyCache(private_stream):
                self.allocator.empty_cache(private_stream)
            case SetFraction(fraction):
                self.allocator.set_memory_fraction(fraction)
            case _:  # pragma: no cover
                assert_never(event)

    def _finish_streams(self, block_id: int) -> None:
        block = self.used_elsewhere.pop(block_id, None)
        # under pressure the wait may have ended before, and the block be another id's by now
        if block is not None and self.last_user[block] == block_id:
            self.allocator.finish_streams(block)

    def _record_trace(self, action: SegmentAction, size_bytes: int, stream: int) -> None:
        self.segment_events.append(SegmentEvent(self.index, action, size_bytes, stream))

    def _contradiction(self, event: TimelineEvent, problem: str) -> TimelineError:
        return TimelineError(f"event {self.index}, {event!r}: {problem}")


def _reserved_changes(segment_events: Sequence[SegmentEvent]) -> tuple[ReservedChange, ...]:
    """Add up what came and went; several at one event are one change, or none if they cancel."""
    changes: list[ReservedChange] = []
    reserved = before = 0
    for index, at_event in groupby(segment_events, key=lambda event: event.event_index):
        for event in at_event:
            reserved += event.size_bytes if event.action.takes_memory else -event.size_bytes
        if reserved != before:
            changes.append(ReservedChange(index, reserved))
            before = reserved
    return tuple(changes)
