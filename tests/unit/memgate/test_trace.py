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
)
from memgate.trace import (
    Annotation,
    DeviceEvent,
    MemoryEvent,
    ModuleCall,
    OpEvent,
    Trace,
    TracedGpu,
    read_trace,
)
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
    {"ph": "X", "cat": "user_annotation", "name": "never began"},
]


def _read(*events: dict[str, Any], **more: Any) -> Trace:
    document = json.dumps({"schemaVersion": 1, "traceEvents": events} | more).encode()
    return read_trace(io.BytesIO(document))


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


def _on_gpu(**args: Any) -> dict[str, Any]:
    totals = {"Device Type": 1, "Device Id": 1, "Total Allocated": 640, "Total Reserved": 2048}
    return MEMORY | {"args": MEMORY["args"] | totals | args}


def test_memory_events_of_a_gpu_are_kept_apart() -> None:
    """With the allocator's own totals, and what the file says of its GPUs."""
    events = [_on_gpu(), MEMORY, OP, MODULE]
    gpus = [{"id": 1, "name": "NVIDIA A100", "totalGlobalMem": 4096, "computeMajor": 8}]

    trace = _read(*events, deviceProperties=gpus, distributedInfo={"world_size": 8})

    assert trace.device_events == (DeviceEvent(5.5, 7, 1, 4096, 64, 640, 2048),)
    assert trace.memory_events == (MemoryEvent(5.5, 7, 4096, 64),)
    assert trace.devices == (TracedGpu(number=1, name="NVIDIA A100", memory_bytes=4096),)
    assert trace.world_size == 8


def test_what_a_file_says_of_its_gpus_is_forgiven() -> None:
    """Whatever it is, memory events are all that is needed."""
    trace = _read(_on_gpu(), OP, deviceProperties=[{"id": "x"}], distributedInfo=[3])

    assert (trace.devices, trace.world_size) == ((), 1)


def test_a_trace_of_a_cpu_may_have_looked_at_a_gpu() -> None:
    """A program that asks what its GPU is, and trains on the CPU, leaves calls of CUDA."""
    call = OP | {"cat": "cuda_runtime", "name": "cudaGetDeviceCount"}

    trace = _read(MEMORY, OP, MODULE, call, hip_runtime_version=7)

    assert (len(trace.memory_events), trace.device_events) == (1, ())


def test_stacks_without_modules_are_stacks() -> None:
    """The flag was set, whatever the program calls."""
    function = MODULE | {"name": "train.py(3): main"}

    assert _read(MEMORY, OP, function).missing_flags == ()


@pytest.mark.parametrize(
    ("events", "want_error", "want_message"),
    [
        ([OP, MODULE], TraceIncompleteError, "recorded without profile_memory=True (no memory"),
        ([MEMORY, MODULE], TraceIncompleteError, "without activities=[ProfilerActivity.CPU] (no"),
        (
            [_without(OP, "Input Dims")],
            TraceIncompleteError,
            "the trace was recorded without profile_memory=True (no memory is seen),"
            " with_stack=True (what belongs to which layer is not known),"
            " record_shapes=True (the sizes of parameters and of inputs are not known);"
            " record it with torch.profiler.profile(",
        ),
        ([_without(MEMORY, "ts"), OP], TraceFormatError, "lacks 'ts', 'Addr' or 'Bytes'"),
        ([MEMORY, OP | {"args": {"Input Dims": 5}}], TraceFormatError, "'Input Dims' of an oper"),
        ([MEMORY | {"ts": "noon"}], TraceFormatError, "Expected `float | null`, got `str`"),
        (
            [_on_gpu(Addr=None), MEMORY, OP],
            TraceFormatError,
            "of a GPU lacks 'ts', 'Addr', 'Bytes', 'To",
        ),
        ([_on_gpu(Bytes=2**60), OP], TraceFormatError, "of a GPU has 1152921504606846976 bytes"),
        (
            [_on_gpu(**{"Total Allocated": -1}), OP],
            TraceFormatError,
            "has 64 bytes, and (-1, 2048) in all",
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
    ("events", "want_missing"),
    [
        ([MEMORY, OP, MODULE], ()),
        ([MEMORY, OP], ("with_stack=True",)),
        ([MEMORY, _without(OP, "Input Dims"), MODULE], ("record_shapes=True",)),
        ([MEMORY, _without(OP, "Input Dims")], ("with_stack=True", "record_shapes=True")),
    ],
)
def test_a_trace_without_stacks_or_shapes_is_read(
    events: list[dict[str, Any]], want_missing: tuple[str, ...]
) -> None:
    """It says what it lacks, so that nobody admits a job upon it in silence."""
    assert _read(*events).missing_flags == want_missing


@pytest.mark.parametrize(
    ("data", "want_message"),
    [
        (b"", "the file is empty"),
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


@pytest.mark.parametrize("event", [OP, MODULE, STEP], ids=["operator", "module", "step"])
@pytest.mark.parametrize("times", [{"dur": -1}, {"dur": 1e300}, {"ts": 1e308}, {"ts": -1e17}])
def test_times_that_no_clock_gives_are_refused(
    event: dict[str, Any], times: dict[str, Any]
) -> None:
    """What was alive when would be a guess, and the peak with it."""
    with pytest.raises(TraceFormatError, match=f"{event['name']}' is .*no clock gives such"):
        _read(MEMORY, OP, event | times)


@pytest.mark.parametrize("kind", [0, 1], ids=["cpu", "gpu"])
def test_times_of_memory_events_are_checked(kind: int) -> None:
    """Those that are the same do not tell an order; a few may be."""
    totals = {"Total Allocated": 64, "Total Reserved": 64, "Device Type": kind}
    memory = MEMORY | {"args": MEMORY["args"] | totals}

    with pytest.raises(TraceFormatError, match="no clock gives such"):
        _read(OP, memory | {"ts": 1e17})
    with pytest.raises(TraceFormatError, match="the 100 memory events have 4 different times"):
        _read(OP, *(memory | {"ts": at % 4} for at in range(100)))
    assert _read(OP, *(memory | {"ts": at % 4} for at in range(40)))
    assert _read(OP, *(memory | {"ts": at // 4} for at in range(100)))


def test_tiny_events_are_refused_before_they_become_objects() -> None:
    """Each takes fifty times as much memory as its three bytes."""
    data = b'{"traceEvents":[' + b",".join([b"{}"] * 150_000) + b"]}"

    with pytest.raises(TraceFormatError, match="150,001 objects in 439"):
        read_trace(io.BytesIO(data))


def test_a_file_that_unpacks_to_far_more_than_a_trace_is_refused() -> None:
    """Whatever is in it, before it is unpacked as a whole."""
    packed = gzip.compress(b" " * 30_000_000)

    with pytest.raises(TraceFormatError, match="unpacks to more than 200 times its size"):
        read_trace(io.BytesIO(packed))


def test_the_unpacked_size_is_told_before_anything_is_decoded() -> None:
    """A process sets its memory limit by it."""
    told: list[int] = []

    with pytest.raises(TraceFormatError):
        read_trace(io.BytesIO(gzip.compress(b"not JSON")), on_unpacked=told.append)
    assert told == [8]


@pytest.mark.parametrize("types", ["float", [1], {}])
def test_types_of_inputs_are_names(types: object) -> None:
    """They are decoded once for all operators that have the same."""
    op = OP | {"args": {"Input type": types}}

    with pytest.raises(
        TraceFormatError, match="'Input type' of an operator is not a list of names"
    ):
        _read(MEMORY, op)


def test_parts_that_are_not_utf8_are_no_accident() -> None:
    """They are decoded after the rest, and are what any other mistake in them is."""
    op = OP | {"args": {"Input type": ["float\u00e9"]}}
    trace = {"deviceProperties": [{"name": "\u00e9"}], "traceEvents": [MEMORY, MODULE, op]}
    latin = json.dumps(trace, ensure_ascii=False).encode("latin-1")

    with pytest.raises(TraceFormatError, match="'Input type' of an operator is not a list of"):
        read_trace(io.BytesIO(latin))
    trace["traceEvents"] = [MEMORY, MODULE, OP]
    assert read_trace(io.BytesIO(json.dumps(trace, ensure_ascii=False).encode("latin-1")))


def test_types_of_inputs_may_be_null() -> None:
    """Then there are none."""
    trace = _read(MEMORY, OP | {"args": {"Input type": None}})

    assert trace.ops[0].input_types == ()
