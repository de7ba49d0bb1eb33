"""Bytes -> Vector...: recordings of what the real CUDACachingAllocator did, one JSON object a line.

Two kinds share the format: synthetic sequences, and training runs taken from PyTorch's own
allocation trace. Which fields they have is in docs/allocator.md. Comparing them with a replay is
``conformance``'s job.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, cast, get_args

import msgspec
from msgspec import Meta, Struct

from memgate.allocator.device import AddressPolicy
from memgate.allocator.replay import OnOom
from memgate.errors import VectorFormatError
from memgate.timeline import Timeline, TimelineEvent
from memgate.units import MIB, format_size

#: a record of a million events takes about 30 MiB; a longer line is no record
MAX_LINE_BYTES = 256 * MIB

#: a petabyte: more than any device has, and little enough for 64-bit arithmetic
CapacityBytes = Annotated[int, Meta(ge=0, le=2**50)]

_GZIP_MAGIC = b"\x1f\x8b"


class Vector(Struct, frozen=True, kw_only=True):
    """One recording. Fields that only tell how it was made are not read."""

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
    #: what the real allocator answered, by field
    expect: dict[str, Any]
    #: its answers under other placements, by ``AddressPolicy``
    alt_address_policy: dict[AddressPolicy, Any] = {}

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
    number = 0
    try:
        for number, line in enumerate(_lines(stream), 1):
            if line.strip():
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
    if number == 0:
        raise VectorFormatError("the file is empty; expected one JSON record a line")


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    head = stream.peek(2)[:2] if hasattr(stream, "peek") else b""
    text = cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if head == _GZIP_MAGIC else stream
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
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise VectorFormatError(f"line {number}, {_explain(str(error), line)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VectorFormatError(
            f"line {number} is not JSON ({error}); expected one JSON record a line,"
            " as in allocator_dev.jsonl.gz"
        ) from None


def _explain(problem: str, line: bytes) -> str:
    """Turn msgspec's "rule - at `$.path`" into: record, field, value, rule, next step."""
    fields = msgspec.json.decode(line)
    name = fields.get("id") if isinstance(fields, dict) else None
    record = f"record {name!r}" if isinstance(name, str) else "a record without an id"
    rule, _, path = problem.partition(" - at `$")
    path = path.rstrip("`")
    if not path:
        return f"{record}: {rule}"
    value = fields
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(index)]
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    hint = f"; events are {', '.join(_EVENT_KINDS)}" if path.startswith(".events") else ""
    return f"{record}, {path.lstrip('.')} is {shown}: {rule}{hint}"


_EVENT_KINDS = [kind.__struct_config__.tag for kind in get_args(TimelineEvent)]
