"""Trace of a GPU -> Measurement: the peak that really was, and the timeline that it came from.

A trace of a GPU has the allocator's own totals after each event, so its peaks are quoted, never
worked out. What another GPU, another capacity or another setting of the allocator would do is a
replay of its allocations; ``quote_peaks`` puts both into one answer.

Known limitations:
- The profiler does not record streams, and memory from before the trace is one block. A replay so
  knows allocated memory exactly and reserved memory only nearly: the larger of the two is held
  against a GPU before a job is admitted (``doubt_reserved``).
- Files of old PyTorch have no totals (``device_events``): what they show is the least.
- What a process takes beside PyTorch's allocator is not in a trace: the CUDA context, NCCL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import ceil

from memgate.blocks import BlockProblem, BlockSet, MemoryBlock
from memgate.decision import Decision
from memgate.doubts import MAX_SHARE
from memgate.errors import TraceFormatError
from memgate.gpus import CATALOGUE, GpuTarget
from memgate.job_kinds import DISTRIBUTED, find_distributed
from memgate.links import Call, LinkedBlock, LinkedSet, link_blocks
from memgate.plan import categorize
from memgate.report import Estimate, Reason
from memgate.timeline import (
    Alloc,
    Category,
    Free,
    Label,
    PhaseStart,
    Timeline,
    TimelineEvent,
    make_phases,
)
from memgate.trace import DeviceEvent, Trace, TracedGpu, tell_missing_flags
from memgate.trace_kinds import HOW_TO_MEASURE
from memgate.units import format_size
from memgate.verdict import decide
from memgate.whole_steps import doubt_steps

#: what an answer names as its engine
MEASURED = "measured"

#: GPUs of one model differ by less than this in what they have
_SAME_CAPACITY = 0.99

#: stands for the address of memory from before the trace that is never freed
_REST = None


#: of files that have sizes alone
_TOTALS_MISSING = Reason(
    code="TOTALS_MISSING",
    message="the trace was recorded with an old PyTorch, whose memory events have no addresses and"
    " no totals: what was allocated before it, such as parameters and optimizer state, is not"
    f" known, so this is the least; with PyTorch 2.0 or newer, {HOW_TO_MEASURE}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a trace says of a device."""

    #: 0 if the file does not tell
    reserved_bytes: int
    allocated_bytes: int
    #: what the device has, where it ran; 0 if the file does not tell
    ran_in_bytes: int
    #: in words, for people
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a trace gives of a device."""

    #: its number, as in ``cuda:1``
    device: int
    timeline: Timeline
    peaks: Peaks
    notes: tuple[Reason, ...]
    doubts: tuple[Reason, ...]


def measure(trace: Trace, *, device: int | None = None) -> Iterator[Measurement]:
    """Turn the memory events of each of a trace's GPUs, or of one, into a measurement.

    One after the other, since together they may take much memory.

    Raises:
        TraceFormatError: if there is no such device.
    """
    by_device = {
        number: sorted(events, key=lambda event: event.at_us)
        for number, events in groupby(
            sorted(trace.device_events, key=lambda event: event.device),
            key=lambda event: event.device,
        )
    }
    if device is not None and device not in by_device:
        known = ", ".join(map(str, by_device))
        raise TraceFormatError(
            f"device {device} is not in the trace, or nothing was allocated there; these are in it:"
            f" {known}"
        )
    runs = [_run(at, events) for at, events in by_device.items() if device in (None, at)]
    blocks = tuple(block for run in runs for block in run.blocks)
    linked = link_blocks(BlockSet(blocks=blocks, diagnostics={}), trace)
    ends = accumulate(len(run.blocks) for run in runs)
    for run, end in zip(runs, ends, strict=True):
        yield _measure(run, trace, linked, linked.blocks[end - len(run.blocks) : end])


def _measure(
    run: _Run, trace: Trace, linked: LinkedSet, blocks: Sequence[LinkedBlock]
) -> Measurement:
    """Measure one device, of which ``blocks`` are."""
    return Measurement(
        device=run.device,
        timeline=_make_timeline(run, linked.calls, blocks),
        peaks=Peaks(
            reserved_bytes=0 if trace.lacks_totals else run.peak_reserved_bytes,
            allocated_bytes=run.peak_allocated_bytes,
            ran_in_bytes=_capacity(run, trace),
            text=_describe(run, trace),
        ),
        notes=(_flags_missing(trace),) if trace.ops and trace.missing_flags else (),
        doubts=tuple(_doubt(run, trace)),
    )


def _doubt(run: _Run, trace: Trace) -> Iterator[Reason]:
    if trace.lacks_totals:  # operators of such files are not read
        yield _TOTALS_MISSING
        return
    yield from doubt_steps(trace, run.blocks, run.peak_allocated_bytes)
    yield from _doubt_events(run)
    yield from _doubt_ranks(trace)
    if not trace.ops:
        yield _flags_missing(trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a process did on one device."""

    device: int
    events: tuple[TimelineEvent, ...]
    #: when each of them was
    moments_us: tuple[float, ...]
    blocks: tuple[MemoryBlock, ...]
    #: ids below are of memory from before the trace
    num_older: int
    older_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    diagnostics: Counter[BlockProblem]
    #: by how much its events and its totals differ at most
    unexplained_bytes: int


def _run(device: int, measured: Sequence[DeviceEvent]) -> _Run:
    walk = _Walk(measured)
    for event in measured:
        walk.take(event)
    return _Run(
        device=device,
        events=tuple(walk.events),
        moments_us=tuple(walk.moments_us),
        blocks=tuple(walk.blocks),
        num_older=walk.num_older,
        older_bytes=walk.older_bytes,
        peak_allocated_bytes=max(event.allocated_bytes for event in measured),
        peak_reserved_bytes=max(
            max(event.reserved_bytes, event.allocated_bytes) for event in measured
        ),
        diagnostics=walk.diagnostics,
        unexplained_bytes=walk.unexplained_bytes,
    )


class _Walk:
    """Goes through the events of a device in the order of time, and keeps what is live."""

    def __init__(self, measured: Sequence[DeviceEvent]) -> None:
        self.events: list[TimelineEvent] = []
        self.moments_us: list[float] = []
        self.blocks: list[MemoryBlock] = []
        self.diagnostics: Counter[BlockProblem] = Counter()
        self.unexplained_bytes = 0
        self._live: dict[int | None, int] = {}
        first = measured[0]
        self.older_bytes = max(0, first.allocated_bytes - first.size_bytes)
        self._allocated_bytes = self.older_bytes
        for address, size in _older(measured, self.older_bytes):
            self._allocate(address, size, float("-inf"), first.thread)
        self.num_older = len(self.blocks)
        self.diagnostics[BlockProblem.FREE_OF_OLDER] = sum(
            address is not _REST for address in self._live
        )

    def take(self, event: DeviceEvent) -> None:
        """Take the next event."""
        self._allocated_bytes += event.size_bytes
        off_by = abs(event.allocated_bytes - self._allocated_bytes)
        self.unexplained_bytes = max(self.unexplained_bytes, off_by)
        if event.size_bytes == 0:
            self.diagnostics[BlockProblem.NO_BYTES] += 1
        elif event.size_bytes > 0:
            if event.address in self._live:
                self.diagnostics[BlockProblem.FREE_NOT_SEEN] += 1
                self._free(event.address, event.at_us)
            self._allocate(event.address, event.size_bytes, event.at_us, event.thread)
        elif event.address in self._live:
            size_bytes = self.blocks[self._live[event.address]].size_bytes
            self.diagnostics[BlockProblem.OTHER_SIZE] += size_bytes != -event.size_bytes
            self._free(event.address, event.at_us)

    def _allocate(self, address: int | None, size: int, at_us: float, thread: int) -> None:
        self._live[address] = len(self.blocks)
        self.events.append(Alloc(len(self.blocks), size))
        self.moments_us.append(at_us)
        self.blocks.append(MemoryBlock(len(self.blocks), size, at_us, None, thread))

    def _free(self, address: int, at_us: float) -> None:
        block_id = self._live.pop(address)
        self.events.append(Free(block_id))
        self.moments_us.append(at_us)
        self.blocks[block_id] = self.blocks[block_id]._replace(free_us=at_us)


def _older(measured: Sequence[DeviceEvent], older_bytes: int) -> Iterator[tuple[int | None, int]]:
    """Return memory from before the trace: what is freed later block by block, the rest as one.

    A trace whose events do not add up to its own peak gets the difference here: it was there.
    """
    seen: set[int] = set()
    running = peak = older_bytes
    for event in measured:
        if event.size_bytes < 0 and event.address not in seen:
            yield event.address, -event.size_bytes
            older_bytes += event.size_bytes
        seen.add(event.address)
        running += event.size_bytes
        peak = max(peak, running)
    missing_bytes = max(event.allocated_bytes for event in measured) - peak
    rest = max(0, older_bytes) + max(0, missing_bytes)
    if rest:
        yield _REST, rest


def _make_timeline(run: _Run, calls: Sequence[Call], blocks: Sequence[LinkedBlock]) -> Timeline:
    begins = [call.op.begin_us for call in calls]
    labels = [Label(Category.PARAMETERS, "")] * run.num_older
    for block, call, _ in blocks[run.num_older :]:
        category = categorize(calls, call, block.free_us, begins)
        labels.append(Label(category, "" if call is None else calls[call].layer))
    starts = [
        PhaseStart(bisect_left(run.moments_us, call.op.begin_us), call.phase) for call in calls
    ]
    return Timeline(
        events=run.events,
        labels=tuple(labels),
        phases=make_phases(starts, len(run.events)),
        diagnostics={problem.value: count for problem, count in run.diagnostics.items()},
    )


def _doubt_events(run: _Run) -> Iterator[Reason]:
    if run.unexplained_bytes > MAX_SHARE * run.peak_allocated_bytes:
        off_by = format_size(run.unexplained_bytes)
        message = f"the trace's memory events and its own totals differ by up to {off_by}"
        yield Reason(code="TRACE_UNEXPLAINED", message=message)


def _doubt_ranks(trace: Trace) -> Iterator[Reason]:
    """Doubt one process of several: others may take more, and NCCL takes memory of its own."""
    told = find_distributed(trace)
    if trace.world_size > 1:
        told = f"{trace.world_size} processes{f', {told}' if told else ''}"
    if told:
        yield Reason(
            code=DISTRIBUTED,
            message=f"the job is distributed ({told}), and the trace is of one process: others may"
            " take more, and what NCCL takes beside PyTorch's allocator is not in it",
        )


def _flags_missing(trace: Trace) -> Reason:
    return Reason(code="TRACE_FLAGS_MISSING", message=tell_missing_flags(trace.missing_flags))


def _describe(run: _Run, trace: Trace) -> str:
    """Say what was measured."""
    gpus = {gpu.number: gpu for gpu in trace.devices}
    said = [f"measured on {_name(run, gpus.get(run.device))}: {_sizes(run, trace)}"]
    if run.older_bytes:
        older = format_size(run.older_bytes)
        said.append(f"{older} of it was allocated before the trace and is shown as parameters")
    return "; ".join(said)


def _capacity(run: _Run, trace: Trace) -> int:
    return max((gpu.memory_bytes for gpu in trace.devices if gpu.number == run.device), default=0)


def _name(run: _Run, device: TracedGpu | None) -> str:
    if device is None or not device.name:
        return f"cuda:{run.device}"
    return f"cuda:{run.device}, {device.name} with {format_size(device.memory_bytes)}"


def _sizes(run: _Run, trace: Trace) -> str:
    if trace.lacks_totals:
        return f"the trace allocates {format_size(run.peak_allocated_bytes)} at most"
    reserved, allocated = run.peak_reserved_bytes, run.peak_allocated_bytes
    return f"{format_size(reserved)} reserved and {format_size(allocated)} allocated at most"


def doubt_reserved(peaks: Peaks, target: GpuTarget) -> list[Reason]:
    """Doubt an admission if what was reserved would not fit, whatever the replay says.

    Not on a GPU like the one that it ran on: there, it fits.
    """
    available = target.gpu.memory_bytes - target.already_used_bytes
    if peaks.ran_in_bytes and available >= _SAME_CAPACITY * peaks.ran_in_bytes:
        return []
    verdict = decide(peaks.reserved_bytes, target.gpu, already_used_bytes=target.already_used_bytes)
    if verdict.decision is Decision.ADMIT:
        return []
    message = (
        f"the job had {format_size(peaks.reserved_bytes)} reserved when it was measured: with"
        f" that, it {verdict.message}; less may suffice, since the allocator gives back what it has"
        " cached, but a replay does not know how memory was fragmented"
    )
    return [Reason(code="RESERVED_DOES_NOT_FIT", message=message)]


def quote_peaks(said: Estimate, peaks: Peaks) -> Estimate:
    """Put the measured peaks into an answer that was made from a replay, and say both.

    A replay that needs more than the job had does not reject it: one of the two is wrong.
    """
    if not peaks.reserved_bytes:
        reason = Reason(code="MEASURED_PEAK", message=peaks.text)
        return said.model_copy(
            update={
                "peak_allocated_bytes": peaks.allocated_bytes,
                "reasons": [*said.reasons, reason],
            }
        )
    held_bytes = sum(
        size for name, size in said.breakdown.items() if name not in ("fragmentation", "context")
    )
    reserved = max(peaks.reserved_bytes, held_bytes)
    fits = said.oom is None and reserved + said.context_bytes <= said.available_bytes
    on_gpu = reserved if fits else said.peak_reserved_on_gpu_bytes
    text = peaks.text
    if said.peak_reserved_bytes != reserved:
        text += f"; a replay of its events reserves {format_size(said.peak_reserved_bytes)}"
    reasons = [*said.reasons, Reason(code="MEASURED_PEAK", message=text)]
    decision = said.decision
    assert said.bound is not None
    needs_bytes = ceil(reserved * (1 + said.bound.margin)) + said.bound.context_high_bytes
    if decision is Decision.REJECT and needs_bytes <= said.available_bytes:
        decision = Decision.UNCERTAIN
        reasons.insert(0, _needs_more(said.required_bytes - said.context_bytes, reserved))
    return said.model_copy(
        update={
            "decision": decision,
            "peak_bytes": reserved + said.context_bytes,
            "peak_reserved_bytes": reserved,
            "peak_allocated_bytes": peaks.allocated_bytes,
            "peak_on_gpu_bytes": on_gpu + said.context_bytes,
            "peak_reserved_on_gpu_bytes": on_gpu,
            "breakdown": said.breakdown | {"fragmentation": reserved - held_bytes},
            "fits_on": [
                name
                for name in said.fits_on
                if not doubt_reserved(peaks, GpuTarget(gpu=CATALOGUE[name]))
            ],
            "reasons": reasons,
        }
    )


def _needs_more(segments_bytes: int, reserved_bytes: int) -> Reason:
    message = (
        f"the job ran with {format_size(reserved_bytes)} reserved, which fits, and its replay needs"
        f" {format_size(segments_bytes)}: was it run with other allocator settings? Ask with those"
    )
    return Reason(code="REPLAY_NEEDS_MORE", message=message)
