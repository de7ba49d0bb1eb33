"""RecordedTimeline -> the bytes of a timeline file. The same recording is the same bytes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from memgate.errors import InputError
from memgate.report import Reason
from memgate.timeline_file.columns import pack_column, pack_events, pack_labels, pack_phases
from memgate.timeline_file.communication import pack_communication
from memgate.timeline_file.document import (
    FORMAT_VERSION,
    MAGIC,
    MAX_EVENTS,
    MAX_RECORDED_RANKS,
    BatchPart,
    Document,
    GpuPart,
    MarkPart,
    ReasonPart,
    RunPart,
)
from memgate.timeline_file.recorded import RecordedTimeline

#: repetitions are found at any level, and this is fast
_COMPRESSION = 6

#: what the format does not take in texts, and what is written instead
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INSTEAD = "\N{REPLACEMENT CHARACTER}"

#: lengths in ``document``; what is longer is cut: a long command must not cost a recording
_NAME, _TEXT, _LAYER, _MAX_PARTS = 200, 4_000, 500, 64
_MAX_WORDS, _MAX_REASONS, _MAX_SHAPES, _MAX_MARKS = 1_000, 100, 10_000, 100_000


def write_timeline(recorded: RecordedTimeline) -> bytes:
    """Turn a recording into a file.

    Texts that are longer than the format takes are cut, and control characters are replaced.

    Raises:
        InputError: if it has more events than a file takes.
    """
    num_events = sum(len(one.timeline.events) for one in recorded.ranks)
    if num_events > MAX_EVENTS:
        raise InputError(
            f"the recording has {num_events} events, and a timeline file takes {MAX_EVENTS};"
            " record fewer steps"
        )
    body = msgspec.msgpack.encode(_lay_out(recorded))
    return MAGIC + bytes(FORMAT_VERSION) + zlib.compress(body, _COMPRESSION)


def _lay_out(recorded: RecordedTimeline) -> Document:
    traits = recorded.gpu.traits
    return Document(
        **_lay_out_run(recorded),
        memgate_version=_clean(recorded.memgate_version, _NAME),
        engine_revision=recorded.engine_revision,
        engine=recorded.engine,
        command=[_clean(word, _TEXT) for word in recorded.command[:_MAX_WORDS]],
        gpu=GpuPart(
            name=_clean(recorded.gpu.name, _NAME),
            memory_bytes=recorded.gpu.memory_bytes,
            compute_capability=traits.compute_capability,
            multiprocessors=traits.multiprocessors,
            memory_matters=traits.memory_bytes is not None,
        ),
        versions={
            _clean(name, _NAME): _clean(version, _NAME)
            for name, version in sorted(recorded.versions.items())
        },
        cudnn=None if recorded.cudnn is None else _clean(recorded.cudnn, _NAME),
        architectures=[_clean(name, _NAME) for name in recorded.architectures],
        batches=[
            BatchPart(
                name=_clean(batch.name, _NAME),
                shape=batch.shape,
                dtype=_clean(batch.dtype, _NAME),
                num_batches=batch.num_batches,
            )
            for batch in recorded.batches[:_MAX_SHAPES]
        ],
        world_size=recorded.world_size,
        other_ranks=[
            RunPart(**_lay_out_run(other))
            for other in recorded.other_ranks[: MAX_RECORDED_RANKS - 1]
        ],
    )


def _lay_out_run(recorded: RecordedTimeline) -> dict[str, Any]:
    """Return the fields of a ``RunPart``."""
    timeline = recorded.timeline
    return {
        "alloc_conf": recorded.alloc_conf,
        "num_parameters": recorded.num_parameters,
        "marks": [MarkPart(*mark) for mark in recorded.marks[:_MAX_MARKS]],
        "notes": _reasons(recorded.notes),
        "doubts": _reasons(recorded.doubts),
        "least_segments_bytes": recorded.least_segments_bytes,
        "family": recorded.family,
        "workspaces": tuple(recorded.workspaces),
        "rank": recorded.rank,
        "nccl": pack_communication(recorded.communication),
        "events": pack_events(timeline.events),
        "labels": pack_labels(
            [label._replace(layer=_clean_layer(label.layer)) for label in timeline.labels]
        ),
        "phases": pack_phases(timeline.phases),
        "dispensable": pack_column(sorted(timeline.dispensable)),
        "private_streams": sorted(timeline.private_streams),
        "diagnostics": dict(sorted(timeline.diagnostics.items())),
        "shares": dict(sorted(timeline.shares.items())),
    }


def _reasons(reasons: Sequence[Reason]) -> list[ReasonPart]:
    return [ReasonPart(one.code, _clean(one.message, _TEXT)) for one in reasons[:_MAX_REASONS]]


def _clean_layer(path: str) -> str:
    parts = path.split(".", _MAX_PARTS)[:_MAX_PARTS]
    return _CONTROL.sub(_INSTEAD, ".".join(parts))[:_LAYER]


def _clean(text: str, length: int) -> str:
    plain = _CONTROL.sub(_INSTEAD, text)
    return plain if len(plain) <= length else f"{plain[: length - 3]}..."
