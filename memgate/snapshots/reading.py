"""The bytes of a memory snapshot -> what each device did: the door of this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import AllocatorConfigError, SnapshotFormatError, UnsupportedAllocatorError
from memgate.gunzip import read_unpacked
from memgate.report import Reason
from memgate.snapshots.doubts import find_doubts, find_notes
from memgate.snapshots.history import find_start
from memgate.snapshots.snapshot import DeviceSnapshot, Snapshot, parse_snapshot
from memgate.snapshots.timeline import make_timeline
from memgate.snapshots.unpickling import unpickle_plain
from memgate.timeline import Timeline
from memgate.units import MIB

#: a snapshot of this size, unpacked, has more events than are taken
MAX_SNAPSHOT_BYTES = 2048 * MIB

#: what PyTorch writes is packed to a tenth; what unpacks to this much more is a bomb
_MAX_RATIO = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """What a snapshot says of one device, ready to be replayed."""

    device: int
    timeline: Timeline
    alloc_conf: str
    doubts: tuple[Reason, ...]
    notes: tuple[Reason, ...]


def read_snapshot(
    stream: BinaryIO,
    *,
    max_bytes: int = MAX_SNAPSHOT_BYTES,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> Snapshot:
    """Read a snapshot, plain or gzip; ``on_unpacked`` is told its size before it is decoded.

    Raises:
        SnapshotFormatError: if it is not one, is broken, has anything but plain values in it, is
            too large, or if nothing was allocated on any device.
    """
    data = read_unpacked(
        stream,
        max_bytes=max_bytes,
        error=SnapshotFormatError,
        what="snapshot",
        max_ratio=_MAX_RATIO,
    )
    on_unpacked(len(data))
    snapshot = parse_snapshot(unpickle_plain(data))
    if not snapshot.devices:
        raise SnapshotFormatError("nothing was allocated on any device of the snapshot")
    return snapshot


def read_histories(
    snapshot: Snapshot, *, device: int | None = None, alloc_conf: str | None = None
) -> list[DeviceHistory]:
    """Turn the devices of a snapshot, or the one that is meant, into timelines.

    ``alloc_conf`` takes the place of the settings in the file.

    Raises:
        SnapshotFormatError: if there is no such device.
        AllocatorConfigError: if PyTorch would refuse the settings.
        UnsupportedAllocatorError: if they are not simulated.
    """
    conf = snapshot.alloc_conf if alloc_conf is None else alloc_conf
    try:
        parse_alloc_conf(conf)
    except (AllocatorConfigError, UnsupportedAllocatorError) as error:
        if alloc_conf is None:
            error.about("the snapshot's own settings")
        raise
    return [_analyze(found, conf) for found in _choose(snapshot.devices, device)]


def _choose(devices: Sequence[DeviceSnapshot], wanted: int | None) -> Sequence[DeviceSnapshot]:
    if wanted is None:
        return devices
    chosen = [found for found in devices if found.device == wanted]
    if not chosen:
        known = ", ".join(str(found.device) for found in devices)
        raise SnapshotFormatError(
            f"device {wanted} is not in the snapshot, or nothing was allocated there; these are"
            f" in it: {known}"
        )
    return chosen


def _analyze(found: DeviceSnapshot, alloc_conf: str) -> DeviceHistory:
    config = parse_alloc_conf(alloc_conf)
    start = find_start(found, config)
    timeline = make_timeline(found, start)
    return DeviceHistory(
        device=found.device,
        timeline=timeline,
        alloc_conf=alloc_conf,
        doubts=tuple(find_doubts(found, start, timeline, config)),
        notes=tuple(find_notes(found, start)),
    )
