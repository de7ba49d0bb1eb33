"""Bytes to a trace: what is kept, what is refused, and what a person is told."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest

from memgate.errors import (
    InputError,
    TraceFormatError,
    TraceIncompleteError,
    UnsupportedTraceError,
)
from memgate.trace import Annotation, MemoryEvent, ModuleCall, OpEvent, Trace, read_trace
from tests.conftest import DATA

MEMORY: dict[str, Any] = {
    "ph": "i",
    "cat": "cpu_instant_event",
    "name": "[memory]",
    "ts": 5.5,
    "tid": 7,
    "args": {"Addr": 4096, "Bytes": 64, "Device Type": 0},
}
OP: dict[str, Any] = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "ts": 4,
    "dur": 3,
    "tid": 7,
    "args": {
        "Sequence number": 9,
        "Fwd thread id": 0,
        "Input Dims": [[2, 3], [], [[1], [2]]],
        "Input type": ["float", "Scalar", "TensorList"],
    },
}
MODULE: dict[str, Any] = {
    "ph": "X",
    "cat": "python_function",
    "name": "nn.Module: Linear_0",
    "ts": 3,
    "dur": 5,
    "tid": 7,
}
STEP: dict[str, Any] = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "Optimizer.step#SGD.step",
    "ts": 20,
    "dur": 2,
    "tid": "main",
}
OTHERS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    {"ph": "X", "cat": "python_function", "name": "train.py(3): main", "ts": 1, "dur": 30},
    {"ph": "s", "cat": "fwdbwd", "id": 3, "ts": 4, "tid": 7},
]


def _read(*events: dict[str, Any], **options: Any) -> Trace:
    document = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    return read_trace(io.BytesIO(document), **options)


def test_four_kinds_of_events_are_kept() -> None:
    """Each with what later stages ask of it."""
    trace = _read(MEMORY, OP, MODULE, STEP, *OTHERS)

    assert trace.memory_events == (MemoryEvent(5.5, 7, 4096, 64),)
    dims = ((2, 3), (), ())
    types = ("float", "Scalar", "TensorList")
    assert trace.ops == (OpEvent(4, 7, 7, "aten::mm", 9, None, dims, types),)
    assert trace.module_calls == (ModuleCall(3, 8, 7, "Linear_0"),)
    assert trace.annotations == (Annotation(20, 22, "Optimizer.step#SGD.step"),)
    assert trace.notes == {}


@pytest.mark.parametrize("name", ["tiny-torch-2.14", "tiny-torch-2.6"])
def test_real_traces_are_read(name: str) -> None:
    """Of old and new PyTorch, packed and plain."""
    packed = (DATA / "traces" / f"{name}.json.gz").read_bytes()

    trace = read_trace(io.BytesIO(packed))
    again = read_trace(io.BytesIO(gzip.decompress(packed)))

    assert trace == again
    assert len(trace.memory_events) > 200
    assert {call.name for call in trace.module_calls} >= {"Tiny_0", "Embedding_0", "Linear_1"}


def _without(event: dict[str, Any], *fields: str) -> dict[str, Any]:
    args = {name: value for name, value in event.get("args", {}).items() if name not in fields}
    return {name: value for name, value in event.items() if name not in fields} | {"args": args}


@pytest.mark.parametrize(
    ("events", "want_error", "want_message"),
    [
        ([OP, MODULE], TraceIncompleteError, "recorded without profile_memory=True"),
        ([MEMORY, MODULE], TraceIncompleteError, "recorded without ProfilerActivity.CPU"),
        ([MEMORY, OP], TraceIncompleteError, "recorded without with_stack=True"),
        (
            [MEMORY, _without(OP, "Input Dims"), MODULE],
            TraceIncompleteError,
            "recorded without record_shapes=True; record it with torch.profiler.profile(",
        ),
        ([_without(MEMORY, "Addr")], TraceFormatError, "lacks 'ts', 'Addr' or 'Bytes'"),
        ([MEMORY, OP | {"args": {"Input Dims": 5}}], TraceFormatError, "'Input Dims' of an oper"),
        ([MEMORY | {"ts": "noon"}], TraceFormatError, "Expected `float | null`, got `str`"),
        ([MEMORY, OP | {"cat": "kernel"}], UnsupportedTraceError, "was recorded on a GPU"),
        (
            [MEMORY | {"args": MEMORY["args"] | {"Device Type": 1}}],
            UnsupportedTraceError,
            "memgate needs one of the same job on a CPU",
        ),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused_with_the_next_step(
    events: list[dict[str, Any]], want_error: type[InputError], want_message: str
) -> None:
    """The profiler's flag, the field, or what to do instead."""
    with pytest.raises(want_error) as raised:
        _read(*events)

    assert want_message in raised.value.message


@pytest.mark.parametrize(
    ("data", "want_message"),
    [
        (b"", "not JSON, or cut off"),
        (b"hello", "not JSON, or cut off"),
        (b'{"traceEvents": [', "not JSON, or cut off"),
        (b"[]", "not a trace of torch.profiler"),
        (b"{}", "missing required field `traceEvents`"),
        (b'{"traceEvents": [{"name": "\xff"}]}', "not JSON, or cut off"),
        (b'{"x": ' + b"[" * 100_000, "not JSON, or cut off"),
        (gzip.compress(b"{}" * 500, mtime=0)[:-12], "the gzip file is cut off"),
        (b"\x1f\x8bnonsense", "the gzip file is broken"),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, want_message: str) -> None:
    """In one sentence, with the next step."""
    with pytest.raises(TraceFormatError) as raised:
        read_trace(io.BytesIO(data))

    assert want_message in raised.value.message
    assert "export the trace again with prof.export_chrome_trace()" in raised.value.message


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_trace_that_is_too_large_is_refused_before_it_is_read(pack: Any) -> None:
    """A small file may unpack to a very large one."""
    with pytest.raises(TraceFormatError, match="larger than 1000 bytes unpacked"):
        read_trace(io.BytesIO(pack(b" " * 10_000_000)), max_bytes=1000)
