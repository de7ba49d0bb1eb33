"""Stage 1, first half: bytes -> TraceFile: the events of a Chrome trace as they stand in the file.

Plain or gzip. Only the fields that are used are decoded. What cannot be decoded is named by
``trace_kinds``; what the events mean is the business of ``trace``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import msgspec
from msgspec import Struct, field

from memgate.errors import TraceFormatError
from memgate.gunzip import read_unpacked
from memgate.trace_kinds import AGAIN, name_other_file
from memgate.units import MIB, format_size

#: a trace of this size, unpacked, is hundreds of iterations too long
MAX_TRACE_BYTES = 2048 * MIB

#: an event of a profiler takes three times as many bytes for each object, and never so few
_MIN_OBJECT_BYTES = 40
#: of which no rule is needed: they take little memory whatever is in them
_FREE_OBJECTS = 100_000

#: times are microseconds, since 1970 or since the machine started; this is three hundred years
MAX_TIME_US = 1e16

#: what a profiler writes is packed to a twentieth; what unpacks to this much more is a bomb
_MAX_RATIO = 200

#: of a key that a file does not have
_NOTHING = msgspec.Raw(b"")


class FileArgs(Struct, gc=False):
    """What the profiler attaches to an event, as far as it is used."""

    address: int | None = field(default=None, name="Addr")
    size_bytes: int | None = field(default=None, name="Bytes")
    device_type: int | None = field(default=None, name="Device Type")
    device: int = field(default=0, name="Device Id")
    allocated_bytes: int | None = field(default=None, name="Total Allocated")
    reserved_bytes: int | None = field(default=None, name="Total Reserved")
    sequence_number: int | None = field(default=None, name="Sequence number")
    forward_thread: int | None = field(default=None, name="Fwd thread id")
    input_dims: msgspec.Raw = field(default=msgspec.Raw(b"[]"), name="Input Dims")
    input_types: msgspec.Raw = field(default=msgspec.Raw(b"[]"), name="Input type")


class FileEvent(Struct, gc=False):
    """An event."""

    name: str = ""
    category: str | None = field(default=None, name="cat")
    begin_us: float | None = field(default=None, name="ts")
    duration_us: float = field(default=0.0, name="dur")
    thread: int | str = field(default=0, name="tid")
    args: FileArgs | None = None


class TraceFile(Struct):
    """A file."""

    events: list[FileEvent] = field(name="traceEvents")
    #: what ``memgate profile`` wrote into it
    notes: dict[str, object] = field(default_factory=dict, name="memgate")
    #: the profiler of PyTorch always writes it
    schema: msgspec.Raw = field(default=_NOTHING, name="schemaVersion")
    #: read by ``trace``, which forgives what it cannot use
    devices: msgspec.Raw = field(default=msgspec.Raw(b"[]"), name="deviceProperties")
    distributed: msgspec.Raw = field(default=msgspec.Raw(b"{}"), name="distributedInfo")
    #: whether memory was recorded; only newer files say so
    memory_flag: msgspec.Raw = field(default=_NOTHING, name="profile_memory")
    #: of ROCm
    hip_version: msgspec.Raw = field(default=_NOTHING, name="hip_runtime_version")


def read_file(
    stream: BinaryIO, max_bytes: int, on_unpacked: Callable[[int], None] = lambda _: None
) -> TraceFile:
    """Read a file; ``on_unpacked`` is told its size before it is decoded.

    Raises:
        TraceFormatError: if it is not a trace, is broken, unpacks to more than ``max_bytes``, or
            has more objects than a profiler writes into so many bytes.
    """
    data = read_unpacked(
        stream,
        max_bytes=max_bytes,
        error=TraceFormatError,
        what="trace",
        max_ratio=_MAX_RATIO,
        again=AGAIN,
        smaller="profile fewer iterations, two or three suffice",
    )
    on_unpacked(len(data))
    _check_objects(data)
    try:
        return msgspec.json.decode(data, type=TraceFile)
    except msgspec.ValidationError as error:
        what = name_other_file(data) or f"not a trace of torch.profiler: {error}; {AGAIN}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = name_other_file(data) or f"not JSON, or cut off: {error}; {AGAIN}"
    raise TraceFormatError(what)


def _check_objects(data: bytearray) -> None:
    """Refuse a file of tiny events before they become objects, which take much more memory."""
    allowed = _FREE_OBJECTS + len(data) // _MIN_OBJECT_BYTES
    if (num_objects := data.count(b"{")) > allowed:
        raise TraceFormatError(
            f"not a trace of torch.profiler: {num_objects:,} objects in {format_size(len(data))},"
            f" where a trace has {allowed:,} at most; {AGAIN}"
        )
