"""The way from a job to an answer. START READING HERE.

A profiler trace is read (stage 1, ``trace``) and becomes a timeline (stages 2 to 4,
``analyze``); the phantom engine records a timeline itself. From there on the way is the same
(stages 5 and 6, ``estimate_timeline``). The modules of the stages have the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.blocks import pair_blocks
from memgate.capacity import MemoryNeeds, RequiredMemory
from memgate.collector import pause_collector
from memgate.decision import Decision
from memgate.doubts import find_doubts
from memgate.gpus import GpuSpec, GpuTarget, list_gpus
from memgate.host_work import leave_out_host_work
from memgate.links import link_blocks
from memgate.nccl import NO_COMMUNICATION, MemoryRange, NcclUse, estimate_nccl
from memgate.nccl.words import doubt_mig, tell_communication
from memgate.orchestration import orchestrate
from memgate.plan import DeviceTraits
from memgate.repetition import repeat_iterations
from memgate.report import SEARCH_STOPPED, CommunicationMemory, Estimate, Oom, Reason
from memgate.residents import find_residents
from memgate.timeline import Timeline
from memgate.trace import Trace
from memgate.trace_doubts import find_trace_doubts, find_trace_notes
from memgate.units import format_size
from memgate.verdict import (
    USUAL_CONTEXT_BYTES,
    Verdict,
    decide,
    decide_by_sizes,
    find_sizes,
    left_for_segments,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedTrace:
    """What a trace of a CPU tells about the job on a GPU."""

    timeline: Timeline
    #: with one of them, no job is admitted
    doubts: tuple[Reason, ...]
    notes: tuple[Reason, ...]


@pause_collector()
def analyze(trace: Trace, device: DeviceTraits, *, without: Iterable[str] = ()) -> AnalyzedTrace:
    """Turn a trace of a CPU into the timeline of a GPU; ``without`` names rules to leave out.

    Raises:
        TraceFormatError: if the trace's own notes are broken.
    """
    trace = leave_out_host_work(trace)
    # 2. Each allocation with its free.
    blocks = pair_blocks(trace)
    # 3. What each belongs to; what is older than the trace; and the job from its first iteration.
    linked = link_blocks(blocks, trace)
    residents = find_residents(trace, linked)
    repeated = repeat_iterations(linked, residents)
    # 4. What a GPU would have done.
    timeline = orchestrate(repeated.linked, residents, device, without=without)
    return AnalyzedTrace(
        timeline=timeline,
        doubts=tuple(find_trace_doubts(trace, linked, residents, repeated)),
        notes=tuple(find_trace_notes(trace, residents, repeated)),
    )


def estimate_timeline(
    timeline: Timeline,
    target: GpuTarget,
    *,
    alloc_conf: str = "",
    engine: str,
    runtime: str,
    versions: dict[str, str],
    notes: Sequence[Reason] = (),
    doubts: Sequence[Reason] = (),
    architectures: Collection[str] = (),
    needs: MemoryNeeds | None = None,
    used: NcclUse = NO_COMMUNICATION,
) -> Estimate:
    """Answer for one job and one GPU.

    ``notes`` are what the engine has to say about its work. With ``doubts``, those about a trace
    among them, no job is admitted: it is uncertain whether it fits, and they are the reason.
    ``architectures`` are those that the job's PyTorch was built for: it fits on no others.
    ``needs`` are those of the timeline, if the caller needs them too. ``used`` is what the job uses
    NCCL for.
    """
    gpu = target.gpu
    doubts = [*doubts, *find_doubts(timeline), *doubt_mig(used, gpu)]
    config = parse_alloc_conf(alloc_conf)
    nccl = estimate_nccl(used, gpu)
    beside = USUAL_CONTEXT_BYTES + nccl.expected_bytes
    left = left_for_segments(target, nccl.expected_bytes)
    if needs is None:
        # 5. What the job takes,
        needs = MemoryNeeds(timeline, config)
    # of this GPU,
    run = needs.run_in(left)
    # what it would take with unlimited memory, and the least in which it runs,
    ample, required = needs.ample, needs.least_bytes(died_at_bytes=left if run.oom else 0)
    # and what would hold the memory at the peak.
    breakdown = {**needs.breakdown, **_beside(nccl)}
    # 6. The verdict, here and elsewhere.
    verdict = decide(
        required, gpu, already_used_bytes=target.already_used_bytes, communication=nccl
    )
    decision, reasons = _settle(verdict, doubts)
    return Estimate(
        decision=decision,
        engine=engine,
        gpu=gpu.name,
        needs_bytes=verdict.sizes.needs_bytes,
        least_bytes=verdict.sizes.least_bytes,
        upper_bound_bytes=verdict.sizes.needs_bytes,
        capacity_bytes=gpu.memory_bytes,
        available_bytes=verdict.sizes.available_bytes,
        peak_bytes=ample.peak_reserved_bytes + beside,
        peak_reserved_bytes=ample.peak_reserved_bytes,
        peak_allocated_bytes=ample.peak_allocated_bytes,
        peak_on_gpu_bytes=run.peak_reserved_bytes + beside,
        peak_reserved_on_gpu_bytes=run.peak_reserved_bytes,
        context_bytes=USUAL_CONTEXT_BYTES,
        communication=CommunicationMemory(**nccl._asdict()) if nccl.is_any else None,
        required_bytes=required + beside,
        headroom_bytes=verdict.headroom_bytes,
        breakdown=breakdown,
        reasons=[*reasons, *_tell_search(needs.required), *tell_communication(used, nccl), *notes],
        oom=Oom(event=run.oom.event_index, message=run.oom.details.message) if run.oom else None,
        fits_on=[*_find_others((*list_gpus(),), required, (*architectures,), used)],
        timings_ms={},
        runtime=runtime,
        versions=versions,
    )


def _settle(verdict: Verdict, doubts: Sequence[Reason]) -> tuple[Decision, list[Reason]]:
    """Return the decision and its reasons; with doubts, no job is admitted."""
    said = Reason(code=verdict.code, message=verdict.message)
    decision = min(verdict.decision, Decision.UNCERTAIN) if doubts else verdict.decision
    # what overruled an admission is the reason for the decision, so it comes first
    return decision, [said, *doubts] if decision is verdict.decision else [*doubts, said]


def _tell_search(required: RequiredMemory) -> list[Reason]:
    """Say that the search for the smallest capacity was stopped, if it was."""
    if required.is_exact:
        return []
    message = (
        f"it runs from {format_size(required.size_bytes)} of segments on; whether less suffices was"
        " not searched to the end: that takes too many replays"
    )
    return [Reason(code=SEARCH_STOPPED, message=message)]


def _beside(nccl: MemoryRange) -> dict[str, int]:
    """Return what a process takes besides its segments; NCCL only if it is used."""
    context = {"context": USUAL_CONTEXT_BYTES}
    return context | ({"communication": nccl.expected_bytes} if nccl.is_any else {})


@lru_cache(maxsize=64)  # one job is judged for every GPU of the catalogue
def _find_others(
    gpus: tuple[GpuSpec, ...], required_bytes: int, architectures: tuple[str, ...], used: NcclUse
) -> tuple[str, ...]:
    """Return the GPUs that admit a job, in their order."""
    return tuple(
        gpu.name
        for gpu in gpus
        if gpu.has_kernels(architectures)
        and not doubt_mig(used, gpu)
        and decide_by_sizes(find_sizes(required_bytes, gpu, 0, estimate_nccl(used, gpu)))
        is Decision.ADMIT
    )
