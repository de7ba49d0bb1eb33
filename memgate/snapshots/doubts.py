"""DeviceSnapshot, Start, Timeline -> why its answer may be far off, and what else is worth knowing.

With a doubt no job is admitted. The codes are in docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import replay
from memgate.capacity import AMPLE_BYTES
from memgate.errors import SnapshotFormatError
from memgate.report import Reason
from memgate.snapshots.history import Start
from memgate.snapshots.repeats import shows_repeated_step
from memgate.snapshots.snapshot import DeviceSnapshot, TraceAction
from memgate.timeline import Timeline
from memgate.units import format_size

#: of the events that may contradict the end: another thread allocates while a snapshot is written
_MAX_CONTRADICTIONS = 0.01
#: what the replay may reserve less than the file says was reserved
_MAX_SHORTFALL = 0.02

_HOW_TO_RECORD = (
    "call torch.cuda.memory._record_memory_history(max_entries=1000000) before the model is made,"
    " and _dump_snapshot() after three steps"
)


def find_doubts(
    snapshot: DeviceSnapshot, start: Start, timeline: Timeline, config: AllocatorConfig
) -> list[Reason]:
    """Return the reasons to doubt an answer.

    Raises:
        SnapshotFormatError: if it has more memory than any device.
    """
    doubts = [*_find_oom(snapshot), *_find_wrap(snapshot, start)]
    if not snapshot.events:
        message = f"no history was recorded, only what was there at the end; {_HOW_TO_RECORD}"
        doubts = [Reason(code="NO_HISTORY", message=message)]
    elif not doubts and not shows_repeated_step(timeline):
        message = "the history shows no step more than once, and later steps may take more"
        doubts.append(Reason(code="NO_REPEATED_STEP", message=f"{message}; {_HOW_TO_RECORD}"))
    return [*doubts, *_find_mistakes(snapshot, start, timeline, config)]


def find_notes(snapshot: DeviceSnapshot, start: Start) -> list[Reason]:
    """Return what is worth knowing: what the file itself says was reserved, and since when."""
    peak = format_size(start.peak_reserved_bytes)
    notes = [
        Reason(
            code="SNAPSHOT_PEAK",
            message=f"on device {snapshot.device} of the snapshot at most {peak} were reserved",
        )
    ]
    if snapshot.events and start.blocks and not _find_wrap(snapshot, start):
        size = format_size(sum(block.requested_bytes for block in start.blocks))
        notes.append(
            Reason(
                code="HISTORY_STARTS_LATE",
                message=f"{size} were allocated before the history began: they are counted, what"
                " was freed before is not",
            )
        )
    return notes


def _find_oom(snapshot: DeviceSnapshot) -> list[Reason]:
    failed = [event for event in snapshot.events if event.action is TraceAction.OOM]
    if not failed:
        return []
    tried, left = format_size(failed[-1].size_bytes), format_size(failed[-1].address)
    times = f", the last of {len(failed):,} such requests" if len(failed) > 1 else ""
    return [
        Reason(
            code="ENDED_IN_OOM",
            message=f"the program ran out of memory when it asked for {tried}, with {left} left on"
            f" the device{times}; how much it would have taken is not known, so this is the least",
        )
    ]


def _find_wrap(snapshot: DeviceSnapshot, start: Start) -> list[Reason]:
    """Find out whether the beginning of the history was overwritten.

    A block that was allocated while recording has a stack. If its allocation is not in the history,
    it was. Where there are no stacks at all, a history that starts late looks the same.
    """
    if any(block.origin is not None for block in start.blocks):
        message = "the beginning of the history was overwritten"
    elif start.blocks and all(event.origin is None for event in snapshot.events):
        message = "the beginning of the history may have been overwritten: no stacks tell"
    else:
        return []
    return [Reason(code="HISTORY_WRAPPED", message=f"{message}; {_HOW_TO_RECORD}")]


def _find_mistakes(
    snapshot: DeviceSnapshot, start: Start, timeline: Timeline, config: AllocatorConfig
) -> Iterator[Reason]:
    """Hold the history against the end of it, and the replay against both."""
    if start.num_contradictions > _MAX_CONTRADICTIONS * len(snapshot.events):
        yield Reason(
            code="HISTORY_CONTRADICTS",
            message=f"{start.num_contradictions:,} of {len(snapshot.events):,} events contradict"
            " what the snapshot says was there at the end",
        )
    run = replay(timeline, config, AMPLE_BYTES)
    if run.oom is not None:
        raise SnapshotFormatError(
            f"more than {format_size(AMPLE_BYTES)} are allocated in the snapshot: no GPU has that"
        )
    replayed = run.peak_reserved_bytes
    if replayed < start.peak_reserved_bytes * (1 - _MAX_SHORTFALL):
        yield Reason(
            code="REPLAY_DIFFERS",
            message=f"replayed, the history reserves {format_size(replayed)} at most, and"
            f" {format_size(start.peak_reserved_bytes)} in the snapshot; other allocator settings,"
            " or a version of PyTorch that allocates otherwise",
        )
