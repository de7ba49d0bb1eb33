"""Recordings for tests, and timeline files that something was done to."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from memgate.gpus import CATALOGUE
from memgate.report import Reason
from memgate.run_key import GpuTraits
from memgate.timeline import (
    Alloc,
    Category,
    EmptyCache,
    EventsPending,
    Free,
    Label,
    Phase,
    PhaseStart,
    RecordStream,
    SetFraction,
    StreamsDone,
    Timeline,
    TimelineEvent,
)
from memgate.timeline_file.document import HEADER_BYTES, MAGIC
from memgate.timeline_file.recorded import (
    BatchShape,
    JobMark,
    JobPhase,
    RecordedGpu,
    RecordedTimeline,
)
from memgate.timeline_file.writing import write_timeline
from memgate.units import MIB
from tests.conftest import DATA

#: written by the first version of the format
FIRST_FORMAT = DATA / "timelines" / "resnet18-format-1.0.memgate"

#: one event of each kind, as a program may make them
EVENTS: tuple[TimelineEvent, ...] = (
    Alloc(0, 100 * MIB),
    Alloc(1, 30 * MIB, 7),
    RecordStream(0, 7),
    EventsPending(1),
    Free(0),
    StreamsDone(0),
    EventsPending(0),
    EmptyCache(),
    EmptyCache(7),
    SetFraction(0.5),
    Alloc(2, 50 * MIB),
    Free(1),
    Free(2),
)


def make_recorded(**changes: Any) -> RecordedTimeline:
    """Make a recording for an RTX 3060 that has something of everything."""
    gpu = CATALOGUE["rtx-3060"]
    fields: dict[str, Any] = {
        "timeline": Timeline(
            events=EVENTS,
            labels=(
                Label(Category.PARAMETERS, "fc"),
                Label(Category.ACTIVATIONS, "conv1"),
                Label(Category.PARAMETERS, "fc"),
            ),
            dispensable=frozenset({2}),
            private_streams=frozenset({7}),
            phases=(PhaseStart(0, Phase.BETWEEN), PhaseStart(2, Phase.FORWARD)),
            diagnostics={"free_not_seen": 1},
            shares={"free_not_seen": 0.01},
        ),
        "engine": "phantom",
        "command": ("python", "train.py", "--name", "my run"),
        "gpu": RecordedGpu(
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            traits=GpuTraits(
                compute_capability=gpu.compute_capability, multiprocessors=gpu.multiprocessors
            ),
        ),
        "versions": {"python": "3.11.9", "torch": "2.9.1"},
        "cudnn": "9.8.0",
        "alloc_conf": "max_split_size_mb:128",
        "num_parameters": 11_000_000,
        "architectures": ("sm_80", "sm_86", "sm_90"),
        "marks": (
            JobMark(0, JobPhase.LOAD),
            JobMark(1, JobPhase.TRAIN, 0),
            JobMark(4, JobPhase.TRAIN, 1),
            JobMark(10, JobPhase.EVALUATE),
        ),
        "batches": (BatchShape("input_ids", (8, 512), "int64", 3),),
        "notes": (Reason(code="FEWER_STEPS", message="the script ended after 2 of 4 steps"),),
        "memgate_version": "1.2.3",
        "engine_revision": 2,
    }
    return RecordedTimeline(**(fields | changes))


def make_plain(**changes: Any) -> RecordedTimeline:
    """Make one that allocates 100 MiB twice, with the allocator's defaults and no notes."""
    events = (Alloc(0, 100 * MIB), Alloc(1, 100 * MIB), Free(0), Free(1))
    fields = {"timeline": Timeline(events=events), "alloc_conf": "", "notes": (), "marks": ()}
    return make_recorded(**(fields | changes))


def open_document(file: bytes) -> dict[str, Any]:
    """Return what is in a file, unchecked."""
    document: dict[str, Any] = msgspec.msgpack.decode(zlib.decompress(file[HEADER_BYTES:]))
    return document


def close_document(document: Any, version: bytes = b"\x01\x00") -> bytes:
    """Make a file of anything."""
    return pack_body(msgspec.msgpack.encode(document), version)


def pack_body(body: bytes, version: bytes = b"\x01\x00") -> bytes:
    """Make a file of any bytes."""
    return MAGIC + version + zlib.compress(body)


def change_file(path: str, value: Any, recorded: RecordedTimeline | None = None) -> bytes:
    """Return the file of a recording with one value replaced; ``path`` has dots."""
    document = open_document(write_timeline(recorded or make_recorded()))
    *outer, last = path.split(".")
    place: Any = document
    for step in outer:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    return close_document(document)


def u32(*numbers: int) -> bytes:
    """Return a column of unsigned numbers."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def i32(*numbers: int) -> bytes:
    """Return a column of numbers."""
    return struct.pack(f"<{len(numbers)}i", *numbers)
