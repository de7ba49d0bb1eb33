"""Stage 1: the bytes of a PyTorch profiler trace -> Trace, the four kinds of events that matter.

What is read: Chrome trace JSON as ``torch.profiler`` exports it (torch 2.0 to now), plain or gzip.
What is kept: memory events, operators, calls of ``nn.Module``, annotations. Everything is checked
while it is decoded; nothing is guessed or sorted here: ``blocks`` and ``links`` do that.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
from msgspec import Struct, field

from memgate.errors import TraceFormatError, TraceIncompleteError, UnsupportedTraceError
from memgate.units import MIB, format_size

#: a trace of this size, unpacked, is hundreds of iterations too long
MAX_TRACE_BYTES = 2048 * MIB

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = MIB

#: how the profiler names calls of modules, and how ``memgate profile`` names them too
MODULE_PREFIX = "nn.Module: "
_MODULE_KINDS = frozenset({"python_function", "user_annotation"})

#: kinds of events that only a run on a GPU makes
_GPU_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"})

#: what to do about a trace that lacks something
_HOW_TO_PROFILE = (
    "record it with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True,"
    " with_stack=True, record_shapes=True), or with: memgate profile SCRIPT -o TRACE"
)

#: the shapes of an operator's inputs, in order
Dims = tuple[tuple[int, ...], ...]

#: the next step if a file is broken
_AGAIN = "export the trace again with prof.export_chrome_trace(), as .json or .json.gz"

_SHAPES = msgspec.json.Decoder(Dims)


# Events come by the million: as structs without `gc` the garbage collector does not walk over them
# again and again, which took longer than reading them. They cannot be part of a cycle.


class MemoryEvent(Struct, frozen=True, order=True, gc=False):
    """Memory was allocated, or freed."""

    at_us: float
    thread: int
    address: int
    #: negative for a free
    size_bytes: int


class OpEvent(Struct, frozen=True, order=True, gc=False):
    """An operator ran."""

    begin_us: float
    end_us: float
    thread: int
    name: str
    #: ties what ran in the backward pass to what ran in the forward pass; None outside autograd
    sequence_number: int | None
    #: the thread of the forward pass, if this ran in the backward pass
    forward_thread: int | None
    #: of each input, in order; empty for inputs that are not tensors
    input_dims: Dims
    input_types: tuple[str, ...]


class ModuleCall(Struct, frozen=True, order=True, gc=False):
    """An ``nn.Module`` was called."""

    begin_us: float
    end_us: float
    thread: int
    #: its class and a number, such as ``Conv2d_3``
    name: str


class Annotation(Struct, frozen=True, order=True, gc=False):
    """A span with a name: ``ProfilerStep#2``, ``Optimizer.step#Adam.step``."""

    begin_us: float
    end_us: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a profiler saw, in the order of the file."""

    memory_events: tuple[MemoryEvent, ...]
    ops: tuple[OpEvent, ...]
    module_calls: tuple[ModuleCall, ...]
    annotations: tuple[Annotation, ...]
    #: what ``memgate profile`` wrote into the trace; empty in other people's
    notes: dict[str, object]


class _Args(Struct, gc=False):
    """What the profiler attaches to an event, as far as it is used."""

    address: int | None = field(default=None, name="Addr")
    size_bytes: int | None = field(default=None, name="Bytes")
    device_type: int | None = field(default=None, name="Device Type")
    sequence_number: int | None = field(default=None, name="Sequence number")
    forward_thread: int | None = field(default=None, name="Fwd thread id")
    input_dims: msgspec.Raw = field(default=msgspec.Raw(b"[]"), name="Input Dims")
    input_types: tuple[str, ...] | None = field(default=None, name="Input type")


class _Event(Struct, gc=False):
    name: str = ""
    category: str | None = field(default=None, name="cat")
    begin_us: float | None = field(default=None, name="ts")
    duration_us: float = field(default=0.0, name="dur")
    thread: int | str = field(default=0, name="tid")
    args: _Args | None = None


class _File(Struct):
    events: list[_Event] = field(name="traceEvents")
    notes: dict[str, object] = field(default_factory=dict, name="memgate")


def read_trace(stream: BinaryIO, *, max_bytes: int = MAX_TRACE_BYTES) -> Trace:
    """Read a trace.

    Raises:
        TraceFormatError: if it is not a trace, is broken, or unpacks to more than ``max_bytes``.
        TraceIncompleteError: if the profiler was not set to record what is needed.
        UnsupportedTraceError: if it was recorded on a GPU.
    """
    data = _unpack(stream, max_bytes)
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as error:
        raise TraceFormatError(f"not a trace of torch.profiler: {error}; {_AGAIN}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not JSON, or cut off: {error}; {_AGAIN}") from None
    _refuse_gpu_traces(file.events)
    trace = Trace(
        memory_events=tuple(_memory_events(file.events)),
        ops=tuple(_ops(file.events)),
        module_calls=tuple(_module_calls(file.events)),
        annotations=tuple(_annotations(file.events)),
        notes=file.notes,
    )
    _require_what_is_needed(trace)
    return trace


def _unpack(stream: BinaryIO, max_bytes: int) -> bytearray:
    """Read all of a stream, unpacking gzip, and stop when it is too much."""
    head = stream.read(len(_GZIP_MAGIC))
    # grows in place: chunks that are joined at the end would exist twice
    data = bytearray()
    for chunk in _gunzip(stream) if head == _GZIP_MAGIC else _chunks(head, stream):
        data += chunk
        if len(data) > max_bytes:
            raise TraceFormatError(_too_large(max_bytes))
    return data


def _chunks(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    chunk = head
    while chunk:
        yield chunk
        chunk = stream.read(_CHUNK_BYTES)


def _gunzip(stream: BinaryIO) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    packed = _GZIP_MAGIC
    try:
        while packed:
            yield unpacker.decompress(packed, _CHUNK_BYTES)
            packed = unpacker.unconsumed_tail or stream.read(_CHUNK_BYTES)
    except zlib.error as error:
        raise TraceFormatError(f"the gzip file is broken: {error}; {_AGAIN}") from None
    if not unpacker.eof:
        raise TraceFormatError(f"the gzip file is cut off; {_AGAIN}")


def _too_large(max_bytes: int) -> str:
    return (
        f"the trace is larger than {format_size(max_bytes)} unpacked; profile fewer iterations,"
        " two or three suffice"
    )


def _refuse_gpu_traces(events: list[_Event]) -> None:
    on_gpu = any(
        event.category in _GPU_KINDS or (event.args is not None and event.args.device_type == 1)
        for event in events
    )
    if on_gpu:
        raise UnsupportedTraceError(
            "the trace was recorded on a GPU; memgate needs one of the same job on a CPU:"
            f" {_HOW_TO_PROFILE}"
        )


def _memory_events(events: list[_Event]) -> Iterator[MemoryEvent]:
    for event in events:
        args = event.args
        if event.category != "cpu_instant_event" or event.name != "[memory]" or args is None:
            continue
        if event.begin_us is None or args.address is None or args.size_bytes is None:
            raise TraceFormatError("a [memory] event lacks 'ts', 'Addr' or 'Bytes'")
        yield MemoryEvent(event.begin_us, _thread(event), args.address, args.size_bytes)


def _ops(events: list[_Event]) -> Iterator[OpEvent]:
    # A loop repeats its shapes and types: each is kept once, and shapes are decoded once.
    shapes: dict[bytes, Dims] = {}
    types: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
    names: dict[str, str] = {}
    no_args = _Args()
    for event in events:
        begin_us = event.begin_us
        if event.category != "cpu_op" or begin_us is None:
            continue
        args = event.args or no_args
        raw, mine = bytes(args.input_dims), args.input_types or ()
        dims = shapes.get(raw)
        if dims is None:
            dims = shapes[raw] = _dims(raw)
        yield OpEvent(
            begin_us,
            begin_us + event.duration_us,
            _thread(event),
            names.setdefault(event.name, event.name),
            args.sequence_number,
            args.forward_thread or None,
            dims,
            types.setdefault(mine, mine),
        )


def _dims(raw: bytes) -> Dims:
    """Read the shapes of the inputs; those of a list of tensors are a list, and not needed."""
    try:
        return _SHAPES.decode(raw)
    except msgspec.ValidationError:
        return tuple(map(_shape, _inputs(raw)))


def _inputs(raw: bytes) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        raise TraceFormatError("'Input Dims' of an operator is not a list") from None


def _shape(raw: msgspec.Raw) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(raw, type=tuple[int, ...])
    except msgspec.ValidationError:
        return ()


def _module_calls(events: list[_Event]) -> Iterator[ModuleCall]:
    for event in events:
        if event.category not in _MODULE_KINDS or event.begin_us is None:
            continue
        _, found, name = event.name.partition(MODULE_PREFIX)
        if found:
            end_us = event.begin_us + event.duration_us
            yield ModuleCall(event.begin_us, end_us, _thread(event), name)


def _annotations(events: list[_Event]) -> Iterator[Annotation]:
    for event in events:
        is_annotation = event.category == "user_annotation"
        if is_annotation and event.begin_us is not None and MODULE_PREFIX not in event.name:
            yield Annotation(event.begin_us, event.begin_us + event.duration_us, event.name)


def _thread(event: _Event) -> int:
    return event.thread if isinstance(event.thread, int) else 0


def _require_what_is_needed(trace: Trace) -> None:
    missing = [
        flag
        for flag, is_there in (
            ("profile_memory=True", trace.memory_events),
            ("ProfilerActivity.CPU", trace.ops),
            ("with_stack=True", trace.module_calls),
            ("record_shapes=True", any(op.input_dims for op in trace.ops)),
        )
        if not is_there
    ]
    if missing:
        raise TraceIncompleteError(
            f"the trace was recorded without {missing[0]}; {_HOW_TO_PROFILE}"
        )
