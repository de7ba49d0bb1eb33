"""Feeds a program's events to an allocator and records the results: the reference core.

It decides nothing about memory: that is the allocator's job. It tracks which block belongs to which
id, what happened at which event, and where the program would have died.
"""

from __future__ import annotations

from array import array
from typing import Any, assert_never

from memgate.allocator.allocators import make_allocator
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import Device
from memgate.allocator.protocol import Allocator, OutOfMemory, SegmentAction
from memgate.allocator.results import (
    Core,
    OnOom,
    OomEvent,
    Probe,
    Replay,
    SegmentEvent,
    find_reserved_changes,
)
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


class Player:
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
        self.device = device
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
            reserved_changes=find_reserved_changes(self.segment_events),
            allocated_series=allocated_series,
            active_series=active_series,
            final_segments=self.allocator.snapshot(),
            lowest_bytes=self.device.window.lowest_bytes,
            below_bytes=self.device.window.below_bytes,
            core=Core.PYTHON,
        )

    def probe(self) -> Probe:
        """Feed the events to the allocator until the program dies; say whether it lives."""
        for index, event in enumerate(self.events):
            self.index = index
            if isinstance(event, Alloc):
                self._alloc(event)
                if self.ooms:
                    break
            elif isinstance(event, Free):
                self._free(event)
            else:
                self._handle_rare(event)
        window = self.device.window
        num_events = self.index + 1 if self.events else 0
        return Probe(not self.ooms, window.lowest_bytes, window.below_bytes, num_events)

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
        return make_contradiction(self.index, event, problem)


def make_contradiction(index: int, event: TimelineEvent, problem: str) -> TimelineError:
    """Make the error about an event that cannot follow those before it."""
    return TimelineError(f"event {index}, {event!r}: {problem}")
