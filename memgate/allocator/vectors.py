"""Bytes -> Vector...: recordings of the real CUDACachingAllocator, one JSON object per line.

Two kinds share the format: synthetic sequences, and training runs taken from PyTorch's own
allocation trace. Which fields they have is in docs/allocator.md. Comparing them with a replay is
``conformance``'s job.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, cast, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from memgate.allocator.device import AddressPolicy
from memgate.allocator.protocol import SegmentAction
from memgate.allocator.replay import OnOom
from memgate.errors import VectorFormatError
from memgate.timeline import Timeline, TimelineEvent
from memgate.units import MIB, clip, format_size

#: a record of a million events takes about 30 MiB; a longer line is not a record
MAX_LINE_BYTES = 256 * MIB

#: a petabyte: more than any device has, and little enough for 64-bit arithmetic
CapacityBytes = Annotated[int, Meta(ge=0, le=2**50)]

_GZIP_MAGIC = b"\x1f\x8b"


Count = Annotated[int, Meta(ge=0)]
# not a tuple of four: msgspec 0.22 crashes on that in a union with a constrained int
_FourCounts = Annotated[list[Count], Meta(min_length=4, max_length=4)]


class Expectation(Struct, kw_only=True):
    """What the real allocator answered: the fields there can be, and their types.

    Every field may be missing. Series begin each entry with the index of an event.
    """

    #: the most that was ever reserved, allocated, ...
    peak_reserved: Count | UnsetType = UNSET
    peak_allocated: Count | UnsetType = UNSET
    peak_active: Count | UnsetType = UNSET
    peak_requested: Count | UnsetType = UNSET
    peak_inactive_split: Count | UnsetType = UNSET
    n_segments_peak: Count | UnsetType = UNSET
    #: what was reserved, allocated, ... in the end
    final_reserved: Count | UnsetType = UNSET
    final_allocated: Count | UnsetType = UNSET
    final_active: Count | UnsetType = UNSET
    final_requested: Count | UnsetType = UNSET
    n_segments_final: Count | UnsetType = UNSET
    #: [bytes, allocated, large?, stream, blocks]
    final_segments: list[tuple[Count, Count, Count, Count, Count]] | UnsetType = UNSET
    num_alloc_retries: Count | UnsetType = UNSET
    num_ooms: Count | UnsetType = UNSET
    num_oom_rejections: Count | UnsetType = UNSET
    num_device_alloc: Count | UnsetType = UNSET
    num_device_free: Count | UnsetType = UNSET
    #: ``torch.cuda.memory_stats()``
    memory_stats: dict[str, int] | UnsetType = UNSET
    segment_event_counts: dict[SegmentAction, Count] | UnsetType = UNSET
    #: [event, action, bytes, stream]
    segment_events: list[tuple[Count, SegmentAction, Count, Count]] | UnsetType = UNSET
    #: [event, reserved bytes after it]
    reserved_changes: list[tuple[Count, Count]] | UnsetType = UNSET
    #: allocated and active bytes are given after events 0, n, 2n, ...; this is n
    allocated_every: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    allocated_after: list[Count] | UnsetType = UNSET
    active_after: list[Count] | UnsetType = UNSET
    #: a request failed; for a training run: the program died of it
    oom: bool | UnsetType = UNSET
    oom_at_event: Count | UnsetType | None = UNSET
    #: events that raised
    ooms: list[Count] | UnsetType = UNSET
    #: for the request that the program died of, cut off
    oom_message: str | UnsetType | None = UNSET
    oom_messages: list[str] | UnsetType = UNSET
    #: after each iteration [allocated, its peak so far, reserved, its peak so far]
    per_iteration: list[tuple[Count, Count, Count, Count]] | UnsetType = UNSET
    per_iteration_fields: list[str] | UnsetType = UNSET
    #: the smallest capacity at which the run still lives
    min_capacity_replay: Count | UnsetType = UNSET


class Vector(Struct, frozen=True, kw_only=True):
    """One recording. Fields that only say how it was made are not read."""

    id: str
    #: the allocator setting string
    config: str
    #: what the device can hand out in total
    capacity_bytes: CapacityBytes
    #: of which others hold this much
    context_bytes: CapacityBytes = 0
    on_oom: OnOom
    address_policy: AddressPolicy = AddressPolicy.UP
    events: tuple[TimelineEvent, ...]
    #: what the real allocator answered: the fields of ``Expectation``, and others it may have
    expect: dict[str, Any]
    #: its answers under other placements: the peak, or [peak, end, failures, same curve?]
    alt_address_policy: dict[AddressPolicy, Count | _FourCounts] = {}

    @property
    def timeline(self) -> Timeline:
        """The events, to be replayed."""
        return Timeline(events=self.events)


_decoder = msgspec.json.Decoder(Vector)


def read_vectors(stream: BinaryIO) -> Iterator[Vector]:
    """Read recordings from JSON lines, plain or gzip, one at a time.

    Raises:
        VectorFormatError: with the line, the field and the rule, as soon as a line breaks one.
    """
    number = num_records = 0
    try:
        for number, line in enumerate(_lines(stream), 1):
            if line.strip():
                num_records += 1
                yield _decode(line, number)
    except EOFError:
        raise VectorFormatError(
            f"the gzip data ends early, after line {number}: the file is cut off;"
            " copy or download it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise VectorFormatError(
            f"the gzip data is damaged after line {number} ({error}); copy or download it again"
        ) from None
    if num_records == 0:
        raise VectorFormatError("there is no record in it; expected one JSON record a line")


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    if not isinstance(stream, io.BufferedReader):
        stream = io.BufferedReader(cast(io.RawIOBase, stream))
    is_gzip = stream.peek(2).startswith(_GZIP_MAGIC)
    text: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if is_gzip else stream
    number = 0
    while line := text.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise VectorFormatError(
                f"line {number} is longer than {format_size(MAX_LINE_BYTES)};"
                " expected one JSON record a line"
            )
        yield line


def _decode(line: bytes, number: int) -> Vector:
    try:
        vector = _decoder.decode(line)
        msgspec.convert({"expect": vector.expect}, _Expecting)
    except msgspec.ValidationError as error:
        raise VectorFormatError(f"line {number}, {_explain(str(error), line)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise VectorFormatError(
            f"line {number} is not JSON ({error}); expected one JSON record a line,"
            " as in allocator_dev.jsonl.gz"
        ) from None
    return vector


class _Expecting(Struct):
    """Checks the types of the answers; a wrapper, so that messages name ``expect``."""

    expect: Expectation


def _explain(problem: str, line: bytes) -> str:
    """Turn msgspec's "rule - at `$.path`" into: record, field, value, rule, next step."""
    rule, _, path = problem.partition(" - at `$")
    path = path.rstrip("`")
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # the rest is no better
        return f"{path.lstrip('.') or 'the record'}: {rule}"
    name = record.get("id") if isinstance(record, dict) else None
    title = f"record {clip(name)}" if isinstance(name, str) else "a record without an id"
    if not path:
        return f"{title}: {rule}"
    hint = f"; events are {', '.join(_EVENT_KINDS)}" if path.startswith(".events") else ""
    return f"{title}, {path.lstrip('.')} is {_value_at(record, path)}: {rule}{hint}"


def _value_at(record: Any, path: str) -> str:
    """Return what stands at a path such as ``.events[3][2]``, shortened."""
    value = record
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(index)]
    return clip(value, limit=60)


_EVENT_KINDS = [kind.__struct_config__.tag for kind in get_args(TimelineEvent)]
