"""The document of a memory snapshot -> Snapshot: what is used of it, checked.

Written by ``torch.cuda.memory._dump_snapshot`` (torch 2.1 to now). What is read: for each device
the segments as they are at the end, block by block, the history of what the allocator did, and the
allocator's settings. What is not: annotations, pinned host memory.

Everything is counted as it is visited, since a document may refer to one list from many places:
Note [Bounds] in ``unpickling``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec import Struct

from memgate.errors import SnapshotFormatError
from memgate.snapshots.origins import Origin, find_origin
from memgate.timeline import MAX_SIZE_BYTES

#: in the histories of all devices, and of blocks in all segments
MAX_EVENTS = 1_000_000
MAX_BLOCKS = 1_000_000

_MAX_DEVICES = 1024
_MAX_ADDRESS = 2**64 - 1

#: id of what is in no private pool
DEFAULT_POOL = (0, 0)
PoolId = tuple[int, int]


class TraceAction(StrEnum):
    """What an allocator did; others, such as ``snapshot`` and ``annotate``, change nothing."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    OOM = "oom"


_ACTIONS = {action.value: action for action in TraceAction}


class Event(Struct, frozen=True, gc=False):
    """Something that an allocator did."""

    action: TraceAction
    #: what the device had left, if it is an out-of-memory
    address: int
    #: as the program asked for it; of segments, what the device gave
    size_bytes: int
    stream: int
    #: None: the file is of an earlier torch, which did not write it
    pool: PoolId | None
    #: None: there is no stack
    origin: Origin | None


class Block(Struct, frozen=True, gc=False):
    """A piece of a segment that is in use at the end, or freed and waited for by a stream."""

    address: int
    size_bytes: int
    requested_bytes: int
    is_waited_for: bool
    #: None: it was allocated while nothing was recorded, or no stacks were
    origin: Origin | None


class Segment(Struct, frozen=True, gc=False):
    """Memory from the device, as it is at the end."""

    address: int
    size_bytes: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: PoolId
    #: those in use, by address
    blocks: tuple[Block, ...]

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """What a snapshot says of one device."""

    device: int
    #: by address
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a snapshot says."""

    #: those on which something was allocated or happened, by number
    devices: tuple[DeviceSnapshot, ...]
    #: the ``PYTORCH_ALLOC_CONF`` of the program that wrote it
    alloc_conf: str


def parse_snapshot(document: object) -> Snapshot:
    """Check a document and take what is used.

    Raises:
        SnapshotFormatError: if it is not a snapshot, naming the field, or has too many events.
    """
    return _Parser().parse(document)


class _Parser:
    """Counts what it visits."""

    def __init__(self) -> None:
        self._num_blocks = 0
        #: of each list of frames, by identity: events share them. The document is alive meanwhile
        self._origins: dict[int, Origin | None] = {}

    def parse(self, document: object) -> Snapshot:
        if not isinstance(document, dict) or "segments" not in document:
            raise SnapshotFormatError(
                "the pickle is not a memory snapshot: it has no 'segments'; write it with"
                " torch.cuda.memory._dump_snapshot()"
            )
        segments: dict[int, list[Segment]] = {}
        for found in _list(document, "segments"):
            device = _int(found, "device", _MAX_DEVICES, default=0)
            segments.setdefault(device, []).append(self._segment(found))
        traces = _list(document, "device_traces", _MAX_DEVICES, default=[])
        _count_events(traces)
        for device, placed in segments.items():
            _check_addresses(device, placed)
        events = [tuple(self._events(trace)) for trace in traces]
        devices = range(max([len(events), *(device + 1 for device in segments)]))
        return Snapshot(
            devices=tuple(
                DeviceSnapshot(
                    device=device,
                    segments=tuple(sorted(segments.get(device, ()), key=lambda one: one.address)),
                    events=events[device] if device < len(events) else (),
                )
                for device in devices
                if device in segments or (device < len(events) and events[device])
            ),
            alloc_conf=_find_alloc_conf(document),
        )

    def _segment(self, found: Any) -> Segment:
        address = _int(found, "address", _MAX_ADDRESS)
        return Segment(
            address=address,
            size_bytes=_int(found, "total_size", MAX_SIZE_BYTES),
            stream=_int(found, "stream", _MAX_ADDRESS, default=0),
            is_small=found.get("segment_type") == "small",
            is_expandable=found.get("is_expandable") is True,
            pool=_pool(found.get("segment_pool_id")) or DEFAULT_POOL,
            blocks=tuple(self._blocks(found, address)),
        )

    def _blocks(self, segment: dict[str, Any], address: int) -> Iterator[Block]:
        for found in _list(segment, "blocks"):
            self._num_blocks += 1
            if self._num_blocks > MAX_BLOCKS:
                raise SnapshotFormatError(f"the snapshot has more than {MAX_BLOCKS:,} blocks")
            size = _int(found, "size", MAX_SIZE_BYTES)
            state = found.get("state")
            if isinstance(state, str) and state.startswith("active"):
                yield Block(
                    address=_int(found, "address", _MAX_ADDRESS, default=address),
                    size_bytes=size,
                    requested_bytes=min(
                        size, _int(found, "requested_size", MAX_SIZE_BYTES, default=size)
                    ),
                    is_waited_for=state != "active_allocated",
                    origin=self._origin(found),
                )
            address += size

    def _events(self, trace: list[Any]) -> Iterator[Event]:
        for found in trace:
            action = _ACTIONS.get(_text(found, "action"))
            if action is None:
                continue
            address = "device_free" if action is TraceAction.OOM else "addr"
            yield Event(
                action=action,
                address=_int(found, address, _MAX_ADDRESS),
                size_bytes=_int(found, "size", MAX_SIZE_BYTES),
                stream=_int(found, "stream", _MAX_ADDRESS, default=0),
                pool=_pool(found.get("pool_id")),
                origin=self._origin(found),
            )

    def _origin(self, found: dict[str, Any]) -> Origin | None:
        """Return what a stack tells; None if there is none."""
        frames = found.get("frames")
        if not isinstance(frames, list) or not frames:
            return None
        if id(frames) not in self._origins:
            self._origins[id(frames)] = find_origin(frames)
        return self._origins[id(frames)]


def _count_events(traces: list[Any]) -> None:
    """Refuse too many events before any is looked at."""
    if not all(isinstance(trace, list) for trace in traces):
        raise SnapshotFormatError("'device_traces' of the snapshot is not a list of lists")
    if sum(map(len, traces)) > MAX_EVENTS:
        raise SnapshotFormatError(
            f"the snapshot has more than {MAX_EVENTS:,} events; record fewer,"
            " _record_memory_history(max_entries=100000)"
        )


def _find_alloc_conf(document: dict[str, Any]) -> str:
    settings = document.get("allocator_settings")
    if not isinstance(settings, dict):
        return ""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    texts = [settings[name] for name in names if isinstance(settings.get(name), str)]
    return next(filter(None, texts), "")


def _list(
    found: dict[str, Any], name: str, longest: int | None = None, default: list[Any] | None = None
) -> list[Any]:
    value = found.get(name, default)
    if not isinstance(value, list):
        raise SnapshotFormatError(f"{name!r} of the snapshot is not a list")
    if longest is not None and len(value) > longest:
        raise SnapshotFormatError(f"{name!r} of the snapshot has more than {longest:,} items")
    return value


def _text(found: object, name: str) -> str:
    value = found.get(name) if isinstance(found, dict) else None
    if not isinstance(value, str):
        raise SnapshotFormatError(f"{name!r} of an entry of the snapshot is not a string")
    return value


def _check_addresses(device: int, segments: Iterable[Segment]) -> None:
    """Refuse two blocks at one place: which of them an event means, nobody could say."""
    seen: set[int] = set()
    for block in (block for segment in segments for block in segment.blocks):
        if block.address in seen:
            raise SnapshotFormatError(
                f"device {device} of the snapshot has two blocks in use at address"
                f" {block.address:#x}; an allocator has one at each"
            )
        seen.add(block.address)


def _int(found: object, name: str, most: int, default: int | None = None) -> int:
    value = found.get(name, default) if isinstance(found, dict) else None
    if type(value) is not int or not 0 <= value <= most:
        raise SnapshotFormatError(
            f"{name!r} of an entry of the snapshot is not a whole number between 0 and {most}"
        )
    return value


def _pool(value: object) -> PoolId | None:
    match value:
        case (int(first), int(second)):
            return (first, second)
        case _:
            return None
