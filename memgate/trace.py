"""Stage 1: the bytes of a PyTorch profiler trace -> Trace, the kinds of events that matter.

What is read: Chrome trace JSON as ``torch.profiler`` exports it (torch 2.0 to now), plain or gzip,
of a CPU or of NVIDIA's GPUs. What is kept: memory events, operators, calls of ``nn.Module``,
annotations. Everything is checked while it is decoded (``trace_file``); nothing is guessed or
sorted here: ``blocks`` and ``links`` do that. Files without an answer are refused for what they are
by ``trace_kinds``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import msgspec
from msgspec import Struct, field

from memgate.device_events import (
    DeviceEvent,
    check_device,
    lack_totals,
    read_device_events,
    thread_of,
)
from memgate.errors import TraceFormatError
from memgate.trace_file import MAX_TIME_US, MAX_TRACE_BYTES, FileArgs, FileEvent, read_file
from memgate.trace_kinds import (
    AGAIN,
    CPU,
    CUDA,
    FLAG_COSTS,
    Contents,
    refuse_trace,
    tell_missing_flags,
)
from memgate.units import clip

__all__ = [
    "MAX_TRACE_BYTES",
    "MODULE_PREFIX",
    "Annotation",
    "DeviceEvent",
    "Dims",
    "MemoryEvent",
    "ModuleCall",
    "OpEvent",
    "Trace",
    "TracedGpu",
    "read_trace",
    "tell_missing_flags",
]

#: how the profiler names calls of modules, and how ``memgate profile`` names them too
MODULE_PREFIX = "nn.Module: "

#: categories of events
_MEMORY, _OP, _PYTHON, _ANNOTATION = (
    "cpu_instant_event",
    "cpu_op",
    "python_function",
    "user_annotation",
)
_MEMORY_NAME = "[memory]"

#: the shapes of an operator's inputs, in order
Dims = tuple[tuple[int, ...], ...]

#: of parts that are kept as they stand in the file: not what they should be, or not UTF-8
_UNREADABLE = (msgspec.ValidationError, UnicodeDecodeError)

_SHAPES = msgspec.json.Decoder(Dims)
_TYPES = msgspec.json.Decoder(tuple[str, ...] | None)

#: of so many memory events this share have a time of their own; in real traces, nearly all
_MIN_EVENTS = 50
_MIN_TIMES = 0.1

#: of an event without any
_NO_ARGS = FileArgs()


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


class TracedGpu(Struct, frozen=True):
    """A GPU of the machine."""

    number: int = field(default=0, name="id")
    name: str = ""
    memory_bytes: int = field(default=0, name="totalGlobalMem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a profiler saw, in the order of the file."""

    #: of the CPU
    memory_events: tuple[MemoryEvent, ...]
    ops: tuple[OpEvent, ...]
    module_calls: tuple[ModuleCall, ...]
    annotations: tuple[Annotation, ...]
    #: what ``memgate profile`` wrote into the trace; empty in other people's
    notes: dict[str, object]
    #: of ``FLAG_COSTS``, in that order: what the profiler was not set to record
    missing_flags: tuple[str, ...] = ()
    #: of NVIDIA's GPUs; none in a trace of a CPU
    device_events: tuple[DeviceEvent, ...] = ()
    #: they have sizes alone: their totals are added up, and the least that there was
    lacks_totals: bool = False
    devices: tuple[TracedGpu, ...] = ()
    #: processes that train together
    world_size: int = 1


def read_trace(
    stream: BinaryIO,
    *,
    max_bytes: int = MAX_TRACE_BYTES,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> Trace:
    """Read a trace; ``on_unpacked`` is told its size before it is decoded.

    Raises:
        TraceFormatError: if it is not a trace, is broken, or unpacks to more than ``max_bytes``.
        TraceIncompleteError: if it has no memory events, or no operators.
        UnsupportedTraceError: if it was recorded on another vendor's GPU, or with an old PyTorch.
    """
    file = read_file(stream, max_bytes, on_unpacked)
    events: defaultdict[str | None, list[FileEvent]] = defaultdict(list)
    for event in file.events:
        events[event.category].append(event)
    memory = _find_memory(events[_MEMORY]) or _find_memory(events[None])
    categories = frozenset(category for category, mine in events.items() if mine)
    is_torch = bytes(file.schema) != b"" or not file.events
    file.events.clear()
    calls = tuple(_module_calls(chain(_drain(events[_PYTHON]), events[_ANNOTATION])))
    ops = tuple(_ops(_drain(events[_OP])))
    devices = _devices(file.devices)
    has_memory = bool(memory) or bytes(file.memory_flag) == b"1"
    types = {event.args.device_type for event in memory if event.args is not None}
    found = Contents(
        categories=categories,
        device_types=frozenset(CPU if kind is None else kind for kind in types),
        gpus=tuple(device.name for device in devices),
        is_rocm=bytes(file.hip_version) != b"" or any("AMD" in device.name for device in devices),
        is_torch=is_torch,
        is_old=_is_old(memory),
        missing_flags=_missing_flags(has_memory, ops, bool(calls) or _PYTHON in categories),
    )
    refuse_trace(found)
    _check_clock(memory)
    return Trace(
        memory_events=() if found.is_old else tuple(_memory_events(memory)),
        ops=ops,
        module_calls=calls,
        annotations=tuple(_annotations(events[_ANNOTATION])),
        notes=file.notes,
        missing_flags=found.missing_flags,
        device_events=read_device_events(memory),
        lacks_totals=CUDA in found.device_types and lack_totals(memory),
        devices=devices,
        world_size=_world_size(file.distributed),
    )


def _drain(events: list[FileEvent]) -> Iterator[FileEvent]:
    """Yield events and let go of them: what they become is then not there twice."""
    events.reverse()
    while events:
        yield events.pop()


def _find_memory(events: Iterable[FileEvent]) -> list[FileEvent]:
    found = [event for event in events if event.name == _MEMORY_NAME and event.args is not None]
    for event in found:
        check_device(event.args or _NO_ARGS)
    return found


def _check_clock(memory: Sequence[FileEvent]) -> None:
    """Refuse memory events whose times do not tell their order."""
    for event in memory:
        if event.begin_us is not None and abs(event.begin_us) > MAX_TIME_US:
            raise _no_clock(event)
    num_times = len({event.begin_us for event in memory})
    if len(memory) >= _MIN_EVENTS and num_times < _MIN_TIMES * len(memory):
        raise TraceFormatError(
            f"the {len(memory):,} memory events have {num_times:,} different times, so their order"
            f" is not known: their times were lost or rounded; {AGAIN}"
        )


def _no_clock(event: FileEvent) -> TraceFormatError:
    return TraceFormatError(
        f"'ts' of {clip(event.name)} is {event.begin_us:g} and 'dur' is"
        f" {event.duration_us:g}: no clock gives such microseconds; {AGAIN}"
    )


def _is_old(memory: Iterable[FileEvent]) -> bool:
    """Tell whether memory events have no category, or no addresses, as old PyTorch wrote them."""
    addresses = [
        None if event.category is None else (event.args or _NO_ARGS).address for event in memory
    ]
    return bool(addresses) and all(address is None for address in addresses)


def _missing_flags(has_memory: bool, ops: Collection[OpEvent], has_stacks: bool) -> tuple[str, ...]:
    # without operators nobody can tell whether their shapes would have been recorded
    has_shapes = not ops or any(op.input_dims for op in ops)
    found = (has_memory, bool(ops), has_stacks, has_shapes)
    return tuple(flag for flag, is_there in zip(FLAG_COSTS, found, strict=True) if not is_there)


def _devices(raw: msgspec.Raw) -> tuple[TracedGpu, ...]:
    try:
        return msgspec.json.decode(raw, type=tuple[TracedGpu, ...])
    except _UNREADABLE:  # other accelerators say other things; none of it is needed
        return ()


def _world_size(raw: msgspec.Raw) -> int:
    try:
        return msgspec.json.decode(raw, type=_Distributed).world_size
    except _UNREADABLE:
        return 1


class _Distributed(Struct):
    world_size: int = 1


def _memory_events(events: Iterable[FileEvent]) -> Iterator[MemoryEvent]:
    for event in events:
        args = event.args
        assert args is not None
        if args.device_type == CUDA:
            continue
        if event.begin_us is None or args.address is None or args.size_bytes is None:
            raise TraceFormatError("a [memory] event lacks 'ts', 'Addr' or 'Bytes'")
        yield MemoryEvent(event.begin_us, thread_of(event), args.address, args.size_bytes)


def _ops(events: Iterable[FileEvent]) -> Iterator[OpEvent]:
    # A loop repeats its shapes and types: each is decoded and kept once.
    shapes: dict[bytes, Dims] = {}
    types: dict[bytes, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    for event in events:
        begin_us = event.begin_us
        if begin_us is None:
            continue
        if abs(begin_us) > MAX_TIME_US or not 0 <= event.duration_us <= MAX_TIME_US:
            raise _no_clock(event)
        args = event.args or _NO_ARGS
        raw, raw_types = bytes(args.input_dims), bytes(args.input_types)
        dims, mine = shapes.get(raw), types.get(raw_types)
        if dims is None:
            dims = shapes[raw] = _dims(raw)
        if mine is None:
            mine = types[raw_types] = _types(raw_types)
        yield OpEvent(
            begin_us,
            begin_us + event.duration_us,
            thread_of(event),
            names.setdefault(event.name, event.name),
            args.sequence_number,
            args.forward_thread or None,
            dims,
            mine,
        )


def _dims(raw: bytes) -> Dims:
    """Read the shapes of the inputs; those of a list of tensors are a list, and not needed."""
    try:
        return _SHAPES.decode(raw)
    except _UNREADABLE:
        return tuple(map(_shape, _inputs(raw)))


def _types(raw: bytes) -> tuple[str, ...]:
    try:
        return _TYPES.decode(raw) or ()
    except _UNREADABLE:
        raise TraceFormatError("'Input type' of an operator is not a list of names") from None


def _inputs(raw: bytes) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except _UNREADABLE:
        raise TraceFormatError("'Input Dims' of an operator is not a list") from None


def _shape(raw: msgspec.Raw) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(raw, type=tuple[int, ...])
    except _UNREADABLE:
        return ()


def _module_calls(events: Iterable[FileEvent]) -> Iterator[ModuleCall]:
    for event in events:
        if event.begin_us is None:
            continue
        _, found, name = event.name.partition(MODULE_PREFIX)
        if found:
            if abs(event.begin_us) > MAX_TIME_US or not 0 <= event.duration_us <= MAX_TIME_US:
                raise _no_clock(event)
            end_us = event.begin_us + event.duration_us
            yield ModuleCall(event.begin_us, end_us, thread_of(event), name)


def _annotations(events: Iterable[FileEvent]) -> Iterator[Annotation]:
    for event in events:
        if event.begin_us is not None and MODULE_PREFIX not in event.name:
            if abs(event.begin_us) > MAX_TIME_US or not 0 <= event.duration_us <= MAX_TIME_US:
                raise _no_clock(event)
            yield Annotation(event.begin_us, event.begin_us + event.duration_us, event.name)
