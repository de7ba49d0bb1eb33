"""Files without an answer: each is named for what it is, with the line that records more."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
from typing import Any

import pytest

from memgate.errors import (
    MemgateError,
    TraceFormatError,
    TraceIncompleteError,
    UnsupportedTraceError,
)
from memgate.trace import read_trace

ON_CPU = "torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True"
ON_GPU = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile"
UNPACK = "unpack it and give the trace"
EXPORT = 'prof.export_chrome_trace("trace.json")'

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 4, "dur": 3, "tid": 7}
KERNEL = OP | {"cat": "kernel", "name": "sgemm"}
META = {"ph": "M", "name": "process_name", "ts": 1, "args": {"name": "python"}}
A100 = {"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 42}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206}


def _memory(**args: Any) -> dict[str, Any]:
    sizes = {"Addr": 4096, "Bytes": 64, "Total Allocated": 64, "Total Reserved": 64}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "ts": 5,
        "tid": 7,
        "args": sizes | args,
    }


def _file(*events: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events} | more).encode()


def _refuse(data: bytes) -> MemgateError:
    with pytest.raises(MemgateError) as raised:
        read_trace(io.BytesIO(data))
    return raised.value


@pytest.mark.parametrize(
    ("data", "want_what", "want_line"),
    [
        (b"[[-1, 1, 512, 7], [4, 2, 512, 7]]", "a file of export_memory_timeline(), which", EXPORT),
        (b"[[1, 2], [[0, 4], [0, 8]]]", "a file of export_memory_timeline(), which", EXPORT),
        (
            b"<html><body><img src='data:image/png;base64,iVBO'></body></html>",
            "the picture of export_memory_timeline(), not its data",
            EXPORT,
        ),
        (b"<!DOCTYPE html><html></html>", "this is a web page", "prof.export_chrome_trace()"),
        (
            b'{"schema": "1.1.1-chakra.0.0.4", "pid": 3, "nodes": []}',
            "an execution trace (ExecutionTraceObserver)",
            ON_CPU,
        ),
        (b'[{"name": "mm", "ph": "X", "ts": 1}]', "as torch.autograd.profiler and other", ON_CPU),
        (b"train.py(3): main;model.py(9): forward 12\n", "a file of export_stacks()", EXPORT),
        (b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22brain.Event:2", "a file of TensorBoard", EXPORT),
        (b"SQLite format 3\0", "an SQLite database, as Nsight Systems exports it", ON_CPU),
        (b"PK\x03\x04\x14", "a ZIP archive", UNPACK),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_files_that_are_not_chrome_traces_are_named(
    pack: Any, data: bytes, want_what: str, want_line: str
) -> None:
    """By content: people call their files what they like."""
    error = _refuse(pack(data))

    assert isinstance(error, TraceFormatError)
    assert want_what in error.message
    assert want_line in error.message


@pytest.mark.parametrize(
    ("data", "want_message"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b" \n", mtime=0), "the file is empty"),
        (b"\0" * 5000, "the file is full of zeros"),
        (
            gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0),
            "a gzip file within a gzip file; unpack it",
        ),
        (bz2.compress(b"{}"), "this is a bzip2 file; unpack it"),
        (lzma.compress(b"{}"), "this is an xz file; unpack it"),
        (b"\x28\xb5\x2f\xfd\x04", "this is a Zstandard file; unpack it"),
        (b"7z\xbc\xaf\x27\x1c", "this is a 7-Zip archive; unpack it"),
        (b"trace.json".ljust(257, b"\0") + b"ustar\x0000", "this is a tar archive; unpack it"),
        ("\ufeff{}".encode(), "a byte order mark; save it as UTF-8 without one"),
        ("{}".encode("utf-16"), "in UTF-16 or UTF-32; save it as UTF-8"),
        ("{}".encode("utf-16-le"), "in UTF-16 or UTF-32"),
        ("{}".encode("utf-32-be"), "in UTF-16 or UTF-32"),
        (codecs.BOM_UTF16_BE + "{}".encode("utf-16-be"), "in UTF-16 or UTF-32"),
        (b"\x89PNG\r\n\x1a\n", "this is a picture; export a trace of the same profile"),
    ],
)
def test_other_kinds_of_files_are_named(data: bytes, want_message: str) -> None:
    """With what to do about each, instead of the byte that JSON does not have."""
    assert want_message in _refuse(data).message


@pytest.mark.parametrize(
    "data",
    [
        *(b"[]", b"[1]", b"[nonsense", b'[{"a": 1}]', b"{nonsense", b'{"nodes": []}', b"\xff"),
        b'{"traceEvents": 3, "schema": "1", "nodes": []}',
    ],
)
def test_what_nobody_knows_is_said_to_be_no_trace(data: bytes) -> None:
    """Nothing is guessed of it."""
    message = _refuse(data).message

    assert message.startswith(("not a trace of torch.profiler: ", "not JSON, or cut off: "))


@pytest.mark.parametrize(
    ("data", "want_message"),
    [
        (_file(_memory(**{"Device Type": 6}), OP), "on AMD's ROCm, but memgate answers only for"),
        (_file(KERNEL, OP, deviceProperties=[MI300]), "on AMD's ROCm (AMD Instinct MI300X), but"),
        (_file(KERNEL, hip_runtime_version=7), "on AMD's ROCm, but"),
        (_file(_memory(**{"Device Type": 12}), OP), "on Intel's XPU, but"),
        (_file(OP, OP | {"cat": "xpu_runtime"}), "on Intel's XPU, but"),
        (_file(OP, OP | {"cat": "mtia_ccp_events"}), "on Meta's MTIA, but"),
        (_file(_memory(**{"Device Type": 20}), OP), "on a device of PyTorch's type 20, but"),
    ],
)
def test_other_accelerators_are_named(data: bytes, want_message: str) -> None:
    """Nobody is sent looking for a flag of the profiler."""
    error = _refuse(data)

    assert isinstance(error, UnsupportedTraceError)
    assert want_message in error.message
    assert ON_CPU in error.message


@pytest.mark.parametrize(
    "data",
    [
        _file(OP | {"cat": "Operator"}, OP | {"cat": "Kernel"}),
        _file(OP | {"cat": "Runtime"}),
        _file({**_memory(), "cat": None}, OP),
        _file(_memory(Addr=None), OP),
    ],
    ids=["operators", "calls", "memory without a category", "memory without addresses"],
)
def test_traces_of_old_pytorch_are_named(data: bytes) -> None:
    """Their memory was recorded, in a way that does not suffice."""
    error = _refuse(data)

    assert isinstance(error, UnsupportedTraceError)
    assert "with an old PyTorch, in a format" in error.message
    assert f"with PyTorch 2.0 or newer, record it with {ON_CPU}" in error.message


@pytest.mark.parametrize(
    ("data", "want_message", "want_line"),
    [
        (_file(), "the trace is empty", ON_CPU),
        (b'{"traceEvents": []}', "the trace is empty", ON_CPU),
        (_file(META), "the trace is empty", ON_CPU),
        (
            _file(OP, KERNEL, deviceProperties=[A100, A100]),
            "without profile_memory=True (no memory is seen), with_stack=True (what belongs to"
            " which layer is not known), record_shapes=True (the sizes of parameters and of inputs"
            " are not known), on a GPU (NVIDIA A100); record",
            ON_GPU,
        ),
        (_file(OP, OP | {"cat": "cuda_runtime"}), "are not known), on a GPU; record", ON_GPU),
        (_file(_memory(), OP, KERNEL), "has memory events of the CPU alone", ON_GPU),
        (
            _file(
                OP | {"args": {"Input Dims": [[1]]}}, OP | {"cat": "python_function"}, KERNEL
            ).replace(b'"schemaVersion"', b'"profile_memory": 1, "schemaVersion"'),
            "nothing was allocated while the trace was recorded, on a GPU, as in a replay of CUDA",
            ON_GPU,
        ),
    ],
)
def test_traces_that_lack_something_say_all_of_it(
    data: bytes, want_message: str, want_line: str
) -> None:
    """With the line for the device that they were recorded on."""
    error = _refuse(data)

    assert isinstance(error, TraceIncompleteError)
    assert want_message in error.message
    assert want_line in error.message


@pytest.mark.parametrize(
    "events", [[{"name": "x", "ph": "X", "ts": 1}], [OP | {"cat": "blink.user_timing"}]]
)
def test_traces_of_other_tools_are_named(events: list[dict[str, Any]]) -> None:
    """Browsers and TensorFlow write the same format."""
    error = _refuse(json.dumps({"traceEvents": events}).encode())

    assert isinstance(error, TraceFormatError)
    assert "a Chrome trace that torch.profiler did not make" in error.message
    assert ON_CPU in error.message
