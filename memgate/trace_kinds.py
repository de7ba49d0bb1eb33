"""Files that are not answered -> what each really is, and the line of Python that records more.

People hand in whatever a profiler left behind. Each kind has a sentence of its own: a wrong one
sends them looking for a flag that they had set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from memgate.errors import (
    MemgateError,
    TraceFormatError,
    TraceIncompleteError,
    UnsupportedTraceError,
)
from memgate.mistakes import show_value

#: what the profiler can be set to record, and what is not known without it
FLAG_COSTS = {
    "profile_memory=True": "no memory is seen",
    "activities=[ProfilerActivity.CPU]": "no operators are seen",
    "with_stack=True": "what belongs to which layer is not known",
    "record_shapes=True": "the sizes of parameters and of inputs are not known",
}

_FLAGS = "profile_memory=True, with_stack=True, record_shapes=True"

#: the line of Python for a CPU
HOW_TO_PROFILE = (
    f"record it with torch.profiler.profile(activities=[ProfilerActivity.CPU], {_FLAGS}),"
    " or with: memgate profile SCRIPT -o TRACE"
)
#: and for a GPU
HOW_TO_MEASURE = (
    "record it with torch.profiler.profile(activities=[ProfilerActivity.CPU,"
    f" ProfilerActivity.CUDA], {_FLAGS})"
)
_OTHER_TOOL = "this is a Chrome trace that torch.profiler did not make"

#: the next step if a file is broken
AGAIN = "export the trace again with prof.export_chrome_trace(), as .json or .json.gz"
#: the next step if the profiler saved something else
_EXPORT = 'export a trace of the same profile instead: prof.export_chrome_trace("trace.json")'

_UNPACK = "unpack it and give the trace, .json or .json.gz"
_WIDE = "the file is in UTF-16 or UTF-32; save it as UTF-8"
#: how other files begin, and what each is
_MAGICS = {
    b"\x1f\x8b": f"this is a gzip file within a gzip file; {_UNPACK}",
    b"PK\x03\x04": f"this is a ZIP archive, as torch.save() writes it, too; {_UNPACK}",
    b"BZh": f"this is a bzip2 file; {_UNPACK}",
    b"\xfd7zXZ\0": f"this is an xz file; {_UNPACK}",
    b"\x28\xb5\x2f\xfd": f"this is a Zstandard file; {_UNPACK}",
    b"7z\xbc\xaf": f"this is a 7-Zip archive; {_UNPACK}",
    b"\xef\xbb\xbf": "the file begins with a byte order mark; save it as UTF-8 without one",
    b"\xff\xfe": _WIDE,
    b"\xfe\xff": _WIDE,
    b"{\0": _WIDE,
    b"\0{": _WIDE,
    b"\0\0\0{": _WIDE,
    b"\0\0\xfe\xff": _WIDE,
    b"\x89PNG": f"this is a picture; {_EXPORT}",
    b"SQLite": f"this is an SQLite database, as Nsight Systems exports it; {HOW_TO_PROFILE}",
}
#: where a tar archive says what it is
_TAR, _TAR_AT = b"ustar", 257

#: as much of a file as is looked at to name it
_HEAD_BYTES = 4096
#: as in a file of ``export_stacks``: frames from the outside in, and a number
_STACK_LINE = re.compile(rb"[^;\n]+(;[^;\n]+)* \d+\n")

#: what only a run on a GPU leaves behind
_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
#: what a program that only looks at a GPU leaves behind, too
_CALLS_GPU = frozenset({"cuda_runtime", "cuda_driver", "cuda_profiler_range"})
#: what events of old PyTorch are called
_OLD = frozenset({"Operator", "Kernel", "Runtime", "Memcpy", "Memset"})
#: of a file that nothing was recorded into
_NOTHING = frozenset({None, "Trace"})
#: of events that torch.profiler writes, in files that nothing else marks as its own
_TORCH = frozenset({"cpu_op", "cpu_instant_event", "user_annotation", "python_function"})

#: types of devices, as PyTorch numbers them
CPU, CUDA, HIP = 0, 1, 6

#: by the type of device that PyTorch gives memory events
_DEVICE_TYPES = {
    HIP: "AMD's ROCm",
    9: "XLA",
    12: "Intel's XPU",
    13: "Apple's MPS",
    15: "Intel's Gaudi",
    19: "Meta's MTIA",
}
#: by how categories of events begin
_CATEGORY_PREFIXES = {
    "mtia_": "Meta's MTIA",
    "xpu_": "Intel's XPU",
    "hpu_": "Intel's Gaudi",
    "privateuse1_": "an accelerator that PyTorch knows by an extension",
}


def tell_missing_flags(flags: Iterable[str]) -> str:
    """Say what the profiler was not set to record, and what each costs."""
    told = ", ".join(f"{flag} ({FLAG_COSTS[flag]})" for flag in flags)
    return f"the trace was recorded without {told}"


def name_other_file(data: bytearray) -> str:
    """Say what a file is that is not a Chrome trace; nothing if it is not known."""
    head = bytes(data[:_HEAD_BYTES])
    if not head.strip() and len(data) <= _HEAD_BYTES:
        return f"the file is empty; {AGAIN}"
    if not head.strip(b"\0"):
        return f"the file is full of zeros, as after a crash or on a full disk; {AGAIN}"
    for magic, name in _MAGICS.items():
        if head.startswith(magic):
            return name
    if head.startswith(_TAR, _TAR_AT):
        return f"this is a tar archive; {_UNPACK}"
    return _name_text(data, head.lstrip())


def _name_text(data: bytearray, head: bytes) -> str:
    if head.startswith(b"<"):
        return _name_page(head)
    if head.startswith(b"["):
        return _name_array(data)
    if head.startswith(b"{"):
        return _name_object(data)
    if b"brain.Event" in head:
        return f"this is a file of TensorBoard, which has no trace in it; {_EXPORT}"
    if _STACK_LINE.match(head):
        return f"this is a file of export_stacks(), which has times and no memory; {_EXPORT}"
    return ""


def _name_page(head: bytes) -> str:
    if b"data:image/png;base64" in head:
        return f"this is the picture of export_memory_timeline(), not its data; {_EXPORT}"
    return f"this is a web page; {AGAIN}"


def _name_array(data: bytearray) -> str:
    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    first = bytes(items[0]).lstrip()[:1] if items else b""
    if first == b"[":
        return (
            "this is a file of export_memory_timeline(), which has sums or sizes and no addresses;"
            f" {_EXPORT}"
        )
    if first == b"{" and b'"ph"' in bytes(items[0]):
        return (
            "this is a list of Chrome events, as torch.autograd.profiler and other tools write it,"
            f" without memory; {HOW_TO_PROFILE}"
        )
    return ""


def _name_object(data: bytearray) -> str:
    try:
        keys = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if "traceEvents" not in keys and {"schema", "nodes"} <= keys:
        return (
            "this is an execution trace (ExecutionTraceObserver), which has operators and no"
            f" memory; {HOW_TO_PROFILE}"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a Chrome trace has in it, as far as it decides whether there is an answer."""

    #: of its events
    categories: frozenset[str | None]
    #: of the devices whose memory it has
    device_types: frozenset[int]
    #: names of its GPUs, as far as the file has them
    gpus: tuple[str, ...]
    #: the file says that its GPUs are AMD's
    is_rocm: bool
    #: it was written by torch.profiler
    is_torch: bool
    #: its memory events have no category, or no addresses
    is_old: bool
    #: see ``FLAG_COSTS``
    missing_flags: tuple[str, ...]

    @property
    def is_of_gpu(self) -> bool:
        """A GPU computed something."""
        return not _ON_GPU.isdisjoint(self.categories)

    @property
    def gpu_names(self) -> str:
        """In a bracket, each once; nothing if there are none."""
        names = sorted({name for name in self.gpus if name})
        return f" ({', '.join(names)})" if names else ""


def refuse_trace(found: Contents) -> None:
    """Refuse a Chrome trace that cannot be answered, for what it is.

    Raises:
        UnsupportedTraceError: if it is of a device or an age that is not analysed.
        TraceIncompleteError: if it lacks memory events, or operators.
        TraceFormatError: if torch.profiler did not make it.
    """
    is_old = found.is_old or not _OLD.isdisjoint(found.categories)
    if is_old and CUDA not in found.device_types:
        raise UnsupportedTraceError(
            "the trace was recorded with an old PyTorch, in a format whose memory events have no"
            f" addresses or no totals; with PyTorch 2.0 or newer, {HOW_TO_PROFILE}"
        )
    if found.categories <= _NOTHING and not is_old:
        raise _refuse_nothing(found)
    if other := _name_accelerator(found):
        raise UnsupportedTraceError(
            f"the trace was recorded on {other}{found.gpu_names}, but memgate answers only for"
            f" NVIDIA GPUs; on a CPU, {HOW_TO_PROFILE}"
        )
    if CUDA in found.device_types:
        return
    if found.categories.isdisjoint(_TORCH | _ON_GPU | _CALLS_GPU):
        raise TraceFormatError(f"{_OTHER_TOOL}; {HOW_TO_PROFILE}")
    if found.device_types and found.is_of_gpu:
        raise TraceIncompleteError(
            f"the trace was recorded on a GPU{found.gpu_names}, and has memory events of the CPU"
            f" alone; {HOW_TO_MEASURE}"
        )
    if not found.device_types or "cpu_op" not in found.categories:
        raise _refuse_incomplete(found)


def _refuse_incomplete(found: Contents) -> MemgateError:
    """Name what is missing, and the line for the device that the trace is of."""
    on_gpu = found.is_of_gpu or not _CALLS_GPU.isdisjoint(found.categories)
    place = f", on a GPU{found.gpu_names}" if on_gpu else ""
    line = HOW_TO_MEASURE if on_gpu else HOW_TO_PROFILE
    if found.missing_flags:
        return TraceIncompleteError(f"{tell_missing_flags(found.missing_flags)}{place}; {line}")
    return TraceIncompleteError(
        f"nothing was allocated while the trace was recorded{place}, as in a replay of CUDA graphs;"
        f" begin before the first iteration, and {line}"
    )


def _name_accelerator(found: Contents) -> str:
    """Return the accelerator that a trace is of; nothing if it is a GPU of NVIDIA's, or none."""
    for device_type in sorted(found.device_types - {CPU, CUDA}):
        return _DEVICE_TYPES.get(
            device_type, f"a device of PyTorch's type {show_value(device_type)}"
        )
    for prefix, name in _CATEGORY_PREFIXES.items():
        if any(category and category.startswith(prefix) for category in found.categories):
            return name
    is_of_cpu = found.device_types == {CPU} and not found.is_of_gpu
    return _DEVICE_TYPES[HIP] if found.is_rocm and not is_of_cpu else ""


def _refuse_nothing(found: Contents) -> MemgateError:
    if found.is_torch:
        return TraceIncompleteError(
            "the trace is empty: the profiler was stopped before it recorded anything; call"
            f" prof.step() after each iteration if it has a schedule, and {HOW_TO_PROFILE}"
        )
    return TraceFormatError(f"{_OTHER_TOOL}; {HOW_TO_PROFILE}")
