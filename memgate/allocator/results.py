"""What a replay tells: counters, failed requests, segments, and the capacities it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from memgate.allocator.protocol import OutOfMemory, SegmentAction, SegmentInfo
from memgate.allocator.stats import DeviceStats


class Core(StrEnum):
    """The two programs that can replay a timeline on the caching allocator, with one answer."""

    #: in C++, where it was built
    NATIVE = "native"
    #: the reference
    PYTHON = "python"


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
    #: on which devices it would have gone the same way: from here on,
    lowest_bytes: int
    #: and below this
    below_bytes: int
    #: what replayed it
    core: Core

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


class Probe(NamedTuple):
    """Whether a timeline runs to its end in a capacity; and in which others it goes the same way.

    From ``lowest_bytes`` on, and below ``below_bytes``.
    """

    survives: bool
    lowest_bytes: int
    below_bytes: int
    #: events that were replayed
    num_events: int


def find_reserved_changes(segment_events: Sequence[SegmentEvent]) -> tuple[ReservedChange, ...]:
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
