"""Vector -> Mismatch...: does the simulator give the real allocator's answers?

Every field of a recording's ``expect`` is compared, and the peaks under other placements. Fields
this module does not know are named in ``Comparison.not_compared``, never silently skipped.

Two fields of training runs need care. ``oom`` says whether the *program* died: cuDNN catches an
out-of-memory and tries less, so failed requests do not imply it, but a death implies one.
``oom_message`` is cut off by the recorder: ours must begin with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.device import AddressPolicy
from memgate.allocator.iterations import find_iterations
from memgate.allocator.replay import Core, OnOom, Replay, replay
from memgate.allocator.vectors import Vector
from memgate.units import MIB

#: the recorder looked for the smallest sufficient capacity in steps of this
_CAPACITY_STEP = 2 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A field in which the simulator and the real allocator differ."""

    id: str
    field: str
    want: Any
    got: Any
    #: where they diverge, if the field is a series
    event: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one recording."""

    id: str
    num_events: int
    mismatches: tuple[Mismatch, ...]
    #: fields of ``expect`` that we do not know how to compare
    not_compared: tuple[str, ...]
    num_compared: int

    @property
    def is_match(self) -> bool:
        """Something was compared, and nothing differs."""
        return self.num_compared > 0 and not self.mismatches


def replay_vector(
    vector: Vector,
    *,
    allocator_name: str = "caching",
    capacity_bytes: int | None = None,
    address_policy: AddressPolicy | None = None,
    core: Core | None = None,
) -> Replay:
    """Replay a recording as it was recorded, or on another device."""
    return replay(
        vector.timeline,
        parse_alloc_conf(vector.config),
        vector.capacity_bytes if capacity_bytes is None else capacity_bytes,
        context_bytes=vector.context_bytes,
        on_oom=vector.on_oom,
        address_policy=address_policy or vector.address_policy,
        allocator_name=allocator_name,
        core=core,
    )


def compare(vector: Vector, replayed: Replay) -> Comparison:
    """Compare a replay with what was recorded; replays that takes run on the same core."""
    mismatches = [
        mismatch
        for field, want in vector.expect.items()
        if field in _COMPARE
        for mismatch in _COMPARE[field](vector, replayed, field, want)
    ]
    mismatches += _compare_other_placements(vector, replayed)
    return Comparison(
        id=vector.id,
        num_events=replayed.num_events,
        mismatches=tuple(mismatches),
        not_compared=tuple(
            field for field in vector.expect if field not in _COMPARE and field not in _DESCRIPTIVE
        ),
        num_compared=sum(field in _COMPARE for field in vector.expect),
    )


# -- how a field is compared ---------------------------------------------------------------------

_Compare = Callable[[Vector, Replay, str, Any], list[Mismatch]]


def _value(read: Callable[[Replay], Any]) -> _Compare:
    """The field is one value, read off the replay."""

    def compare_value(vector: Vector, replayed: Replay, field: str, want: Any) -> list[Mismatch]:
        got = read(replayed)
        return [] if got == want else [Mismatch(id=vector.id, field=field, want=want, got=got)]

    return compare_value


def _series(read: Callable[[Replay], Sequence[Any]]) -> _Compare:
    """The field is a list whose elements begin with, or are, an event's index."""

    def compare_series(vector: Vector, replayed: Replay, field: str, want: Any) -> list[Mismatch]:
        for wanted, got in zip_longest(want, read(replayed)):
            if wanted != got:
                at = wanted if got is None else got
                event = at[0] if isinstance(at, list) else at
                return [Mismatch(id=vector.id, field=field, want=wanted, got=got, event=event)]
        return []

    return compare_series


def _samples(read: Callable[[Replay], Sequence[int]]) -> _Compare:
    """The field is a value after every n-th event."""

    def compare_samples(vector: Vector, replayed: Replay, field: str, want: Any) -> list[Mismatch]:
        every = vector.expect.get("allocated_every", 1)
        for index, (wanted, got) in enumerate(zip_longest(want, read(replayed)[::every])):
            if wanted != got:
                event = index * every
                return [Mismatch(id=vector.id, field=field, want=wanted, got=got, event=event)]
        return []

    return compare_samples


def _compare_memory_stats(
    vector: Vector, replayed: Replay, field: str, want: Any
) -> list[Mismatch]:
    """Compare the counters that were recorded; one that we do not keep is a mismatch."""
    ours = replayed.stats.memory_stats()
    return [
        Mismatch(id=vector.id, field=f"{field}.{name}", want=value, got=ours.get(name))
        for name, value in want.items()
        if ours.get(name) != value
    ]


def _compare_oom(vector: Vector, replayed: Replay, field: str, want: Any) -> list[Mismatch]:
    got = bool(replayed.ooms)
    program_survived = "oom_message" in vector.expect and not want
    if got == want or program_survived:
        return []
    return [Mismatch(id=vector.id, field=field, want=want, got=got)]


def _compare_oom_message(vector: Vector, replayed: Replay, field: str, want: Any) -> list[Mismatch]:
    messages = [oom.details.message for oom in replayed.ooms]
    if want is None or any(message.startswith(want) for message in messages):
        return []
    got = messages[-1] if messages else None
    return [Mismatch(id=vector.id, field=field, want=want, got=got)]


def _compare_iterations(vector: Vector, replayed: Replay, field: str, want: Any) -> list[Mismatch]:
    found = find_iterations(replayed, want)
    if len(found) == len(want):
        return []
    missing = len(found)
    after = found[-1] if found else 0
    return [Mismatch(id=vector.id, field=field, want=want[missing], got=None, event=after)]


def _compare_min_capacity(
    vector: Vector, replayed: Replay, field: str, want: Any
) -> list[Mismatch]:
    """The recorded capacity suffices, and one step less does not.

    The recorder assumed that the peak itself suffices and searched below it, which fails
    for some expandable segments, with the real allocator as well (docs/allocator.md). There, a
    recorded capacity equal to the peak says only that less does not suffice.
    """
    capacities = {want: True}
    if want >= _CAPACITY_STEP:
        capacities[want - _CAPACITY_STEP] = False
    is_expandable = parse_alloc_conf(vector.config).expandable_segments
    if is_expandable and want == replayed.peak_reserved_bytes:
        del capacities[want]
    got = {capacity: _runs_in(vector, capacity, replayed.core) for capacity in capacities}
    if got == capacities:
        return []
    return [Mismatch(id=vector.id, field=field, want=want, got=got)]


def _runs_in(vector: Vector, capacity_bytes: int, core: Core) -> bool:
    return not replay(
        vector.timeline,
        parse_alloc_conf(vector.config),
        capacity_bytes,
        context_bytes=vector.context_bytes,
        on_oom=OnOom.STOP,
        core=core,
    ).ooms


def _compare_other_placements(vector: Vector, replayed: Replay) -> list[Mismatch]:
    """Compare [peak reserved, final reserved, failed requests, same curve?], or just the peak."""
    mismatches = []
    for policy, want in vector.alt_address_policy.items():
        other = replayed
        if parse_alloc_conf(vector.config).expandable_segments:  # otherwise it makes no difference
            other = replay_vector(vector, address_policy=policy, core=replayed.core)
        stats = other.stats.all
        got: Any = stats.peak_reserved_bytes
        if isinstance(want, list):
            same_curve = int(other.reserved_changes == replayed.reserved_changes)
            got = [got, stats.reserved_bytes, len(other.ooms), same_curve]
        if got != want:
            field = f"alt_address_policy.{policy}"
            mismatches.append(Mismatch(id=vector.id, field=field, want=want, got=got))
    return mismatches


def _segment_event_counts(replayed: Replay) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in replayed.segment_events:
        counts[event.action.value] = counts.get(event.action.value, 0) + 1
    return counts


def _final_segments(replayed: Replay) -> list[list[int]]:
    return [
        [
            segment.total_size,
            segment.allocated_size,
            int(segment.is_large),
            segment.stream,
            segment.num_blocks,
        ]
        for segment in replayed.final_segments
    ]


_COMPARE: Mapping[str, _Compare] = {
    "peak_reserved": _value(lambda run: run.stats.all.peak_reserved_bytes),
    "peak_allocated": _value(lambda run: run.stats.all.peak_allocated_bytes),
    "peak_active": _value(lambda run: run.stats.all.peak_active_bytes),
    "peak_requested": _value(lambda run: run.stats.all.peak_requested_bytes),
    "peak_inactive_split": _value(lambda run: run.stats.all.peak_inactive_split_bytes),
    "n_segments_peak": _value(lambda run: run.stats.all.peak_segment),
    "final_reserved": _value(lambda run: run.stats.all.reserved_bytes),
    "final_allocated": _value(lambda run: run.stats.all.allocated_bytes),
    "final_active": _value(lambda run: run.stats.all.active_bytes),
    "final_requested": _value(lambda run: run.stats.all.requested_bytes),
    "n_segments_final": _value(lambda run: run.stats.all.segment),
    "final_segments": _value(_final_segments),
    "num_alloc_retries": _value(lambda run: run.stats.num_alloc_retries),
    "num_ooms": _value(lambda run: run.stats.num_ooms),
    "num_oom_rejections": _value(lambda run: run.stats.num_oom_rejections),
    "num_device_alloc": _value(lambda run: run.stats.num_device_alloc),
    "num_device_free": _value(lambda run: run.stats.num_device_free),
    "memory_stats": _compare_memory_stats,
    "segment_event_counts": _value(_segment_event_counts),
    "segment_events": _series(
        lambda run: [
            [event.event_index, event.action.value, event.size_bytes, event.stream]
            for event in run.segment_events
        ]
    ),
    "reserved_changes": _series(lambda run: [list(change) for change in run.reserved_changes]),
    "allocated_after": _samples(lambda run: run.allocated_series),
    "active_after": _samples(lambda run: run.active_series),
    "oom": _compare_oom,
    "oom_at_event": _value(lambda run: run.oom.event_index if run.oom else None),
    "ooms": _series(lambda run: [oom.event_index for oom in run.ooms]),
    "oom_message": _compare_oom_message,
    "oom_messages": _series(lambda run: [oom.details.message for oom in run.ooms]),
    "per_iteration": _compare_iterations,
    "min_capacity_replay": _compare_min_capacity,
}

#: fields that say how to read others, and are not answers themselves
_DESCRIPTIVE = frozenset({"allocated_every", "per_iteration_fields"})
