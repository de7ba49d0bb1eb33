"""The bytes of a timeline file -> RecordedTimeline: the door of this room, safe for any bytes.

Nothing in a file is code. Its size, what it unpacks to, the number of its events and the length of
each text are bounded before anything is made of them. A file breaks a rule or keeps all of them:
what breaks one is a ``TimelineFileError`` that names the field, the value and the rule.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import Any, BinaryIO

import msgspec

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import (
    AllocatorConfigError,
    MemgateError,
    TimelineFileError,
    UnsupportedAllocatorError,
)
from memgate.gunzip import read_unpacked
from memgate.mistakes import show_value
from memgate.report import Reason
from memgate.run_key import GpuTraits
from memgate.timeline import Timeline
from memgate.timeline_file.columns import (
    broken,
    unpack_column,
    unpack_events,
    unpack_labels,
    unpack_phases,
)
from memgate.timeline_file.communication import unpack_communication
from memgate.timeline_file.document import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    Document,
    GpuPart,
    ReadLimits,
    RunPart,
)
from memgate.timeline_file.recorded import (
    BatchShape,
    JobMark,
    JobPhase,
    RecordedGpu,
    RecordedTimeline,
)
from memgate.units import format_size
from memgate.workspaces import WorkspaceRange

_AGAIN = "record it again: memgate run -o FILE"

#: of a field, if it is not larger: the value that breaks a rule is shown
_SHOWN_BYTES = 1 << 16

#: how msgspec names a place: a name after a dot, an index or a key in brackets
_STEP = re.compile(r"\.([A-Za-z_]+)|\[(\d+)\]")


def read_timeline(
    source: bytes | BinaryIO,
    limits: ReadLimits = ReadLimits(),  # noqa: B008  # frozen
    *,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> RecordedTimeline:
    """Read and check a timeline file; ``on_unpacked`` is told its size before it is decoded.

    Raises:
        TimelineFileError: if it is not one, is broken, too large, of a newer format, or breaks a
            rule.
    """
    stream = BytesIO(source) if isinstance(source, bytes) else source
    data = read_unpacked(  # somebody may have packed it again
        stream,
        max_bytes=limits.max_file_bytes,
        error=TimelineFileError,
        what="timeline file",
        again=_AGAIN,
    )
    version = read_version(bytes(data[:HEADER_BYTES]))
    body = _unpack(bytes(data[HEADER_BYTES:]), limits.max_unpacked_bytes)
    on_unpacked(len(body))
    return _build(_decode(body), version, limits)


def read_version(head: bytes) -> tuple[int, int]:
    """Return the version of the format that a file is in, by its first bytes.

    Raises:
        TimelineFileError: if it is not a timeline file, or of a format that is not known.
    """
    if not head.startswith(MAGIC):
        raise TimelineFileError(f"this is not a timeline file, by its first bytes; {_AGAIN}")
    if len(head) < HEADER_BYTES:
        raise TimelineFileError(f"the file is cut off; {_AGAIN}")
    major, minor = head[len(MAGIC) : HEADER_BYTES]
    if major > FORMAT_VERSION[0]:
        raise TimelineFileError(
            f"format is {major}.{minor}: this memgate reads timeline files up to format"
            f" {FORMAT_VERSION[0]}; update it, pip install --upgrade memgate"
        )
    if major == 0:
        raise broken("format", f"{major}.{minor}", "the first format is 1.0")
    return major, minor


def _unpack(packed: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, max_bytes + 1)
    except zlib.error as problem:
        raise TimelineFileError(f"the file is broken: {problem}; {_AGAIN}") from None
    if len(body) > max_bytes:
        raise TimelineFileError(
            f"the file is larger than {format_size(max_bytes)} unpacked; record fewer steps"
        )
    if not unpacker.eof:
        raise TimelineFileError(f"the file is cut off; {_AGAIN}")
    if unpacker.unused_data:
        raise TimelineFileError(
            f"the file has {len(unpacker.unused_data)} bytes after its end; {_AGAIN}"
        )
    return body


def _decode(body: bytes) -> Document:
    try:
        return msgspec.msgpack.decode(body, type=Document)
    except msgspec.ValidationError as error:
        rule, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or "the document"
        raise broken(field, _find_value(body, field), rule) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TimelineFileError(f"the file is broken: {error}; {_AGAIN}") from None


def _find_value(body: bytes, place: str) -> str:
    """Return the value at a place of a document, as text; empty if it is not to be had."""
    first, *steps = [name or int(index) for name, index in _STEP.findall(f".{place}")] or [""]
    try:
        value: Any = msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])[str(first)]
        if len(value) > _SHOWN_BYTES:
            return ""
        value = msgspec.msgpack.decode(value)
        for step in steps:
            value = value[step]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return ""
    return show_value(value)


def _build(document: Document, version: tuple[int, int], limits: ReadLimits) -> RecordedTimeline:
    runs = (document, *document.other_ranks)
    num_events = sum(len(run.events.actions) for run in runs)
    if num_events > limits.max_events:
        raise broken("events.actions", f"{num_events} long", f"the limit is {limits.max_events}")
    _check_ranks(document)
    first = _recorded(document, document, version)
    others = (
        _other_rank(number, run, document, version)
        for number, run in enumerate(document.other_ranks)
    )
    return replace(first, other_ranks=tuple(others))


def _check_ranks(document: Document) -> None:
    """Check that each rank is there once, and is one of the job's."""
    known = {document.rank}
    for number, run in enumerate(document.other_ranks):
        if run.rank in known:
            raise broken(f"other_ranks[{number}].rank", run.rank, "each rank is there once")
        known.add(run.rank)
    if max(known) >= document.world_size:
        raise broken("world_size", document.world_size, f"there is a rank {max(known)}")


def _other_rank(
    number: int, run: RunPart, document: Document, version: tuple[int, int]
) -> RecordedTimeline:
    try:
        return _recorded(run, document, version)
    except MemgateError as error:
        raise error.about(f"other_ranks[{number}]") from None


def _recorded(run: RunPart, document: Document, version: tuple[int, int]) -> RecordedTimeline:
    """Return one process of a job, without the others."""
    num_events = len(run.events.actions)
    if not num_events:
        raise broken("events.actions", "empty", "a recording has events")
    _check_settings(run.alloc_conf)
    return RecordedTimeline(
        timeline=_timeline(run),
        engine=document.engine,
        command=tuple(document.command),
        gpu=_gpu(document.gpu),
        versions=document.versions,
        cudnn=document.cudnn,
        alloc_conf=run.alloc_conf,
        num_parameters=run.num_parameters,
        architectures=tuple(document.architectures),
        marks=_marks(run, num_events),
        batches=tuple(
            BatchShape(batch.name, batch.shape, batch.dtype, batch.num_batches)
            for batch in document.batches
        ),
        notes=tuple(Reason(code=one.code, message=one.message) for one in run.notes),
        doubts=tuple(Reason(code=one.code, message=one.message) for one in run.doubts),
        least_segments_bytes=run.least_segments_bytes,
        family=run.family,
        workspaces=WorkspaceRange(*run.workspaces),
        rank=run.rank,
        world_size=document.world_size,
        communication=unpack_communication(run.nccl),
        memgate_version=document.memgate_version,
        engine_revision=document.engine_revision,
        format_version=version,
    )


def _check_settings(alloc_conf: str) -> None:
    try:
        parse_alloc_conf(alloc_conf)
    except AllocatorConfigError as error:
        raise broken("alloc_conf", show_value(alloc_conf), error.message) from None
    except UnsupportedAllocatorError as error:
        raise error.about("the recording's own settings") from None


def _timeline(run: RunPart) -> Timeline:
    events = unpack_events(run.events)
    dispensable = frozenset(unpack_column("dispensable", run.dispensable))
    return Timeline(
        events=events,
        labels=unpack_labels(run.labels, run.events),
        dispensable=dispensable,
        private_streams=frozenset(run.private_streams),
        phases=unpack_phases(run.phases, len(events)),
        diagnostics=run.diagnostics,
        shares=run.shares,
    )


def _gpu(part: GpuPart) -> RecordedGpu:
    return RecordedGpu(
        name=part.name,
        memory_bytes=part.memory_bytes,
        traits=GpuTraits(
            compute_capability=part.compute_capability,
            multiprocessors=part.multiprocessors,
            memory_bytes=part.memory_bytes if part.memory_matters else None,
        ),
    )


def _marks(run: RunPart, num_events: int) -> tuple[JobMark, ...]:
    marks = tuple(JobMark(mark.event_index, mark.phase, mark.step) for mark in run.marks)
    for number, mark in enumerate(marks):
        if mark.event_index > num_events:
            raise broken(f"marks[{number}]", mark.event_index, f"there are {num_events} events")
        if mark.step is not None and mark.phase is not JobPhase.TRAIN:
            raise broken(f"marks[{number}]", f"step {mark.step}", f"{mark.phase} has no steps")
    for number, (before, after) in enumerate(pairwise(marks), start=1):
        if after.event_index < before.event_index:
            rule = f"marks are in order, and the one before is {before.event_index}"
            raise broken(f"marks[{number}]", after.event_index, rule)
    return marks
