"""A job, its answer and its memory curve -> what the page of a job shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from memgate.contract import JobRecord
from memgate.decision import Decision
from memgate.explanation import Sizes, explain
from memgate.gpus import GpuSpec, list_gpus
from memgate.layers import Layer
from memgate.measured import MEASURED
from memgate.nccl.words import NO_MIG
from memgate.report import ESTIMATE_CODES, Estimate, Fit
from memgate.verdict import decide_by_sizes, left_for_segments
from memgate.views import TimelineView
from memgate_service.dashboard.rendering import CATEGORIES
from memgate_worker.queue.client import describe_subject

#: layers that hold less than this share are shown as one
_MIN_LAYER_SHARE = 0.004
_MAX_LAYER_DEPTH = 8

#: what the loss, the optimizer and the libraries hold
NO_LAYER = "in no layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of the memory at the peak."""

    name: str
    label: str
    size_bytes: int
    share: float
    #: where it begins in the bar, and how wide it is, as percentages
    begin: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """The most that was held in a phase."""

    phase: str
    begin: int
    end: int
    reserved_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCell:
    """A GPU of the catalogue."""

    name: str
    capacity_bytes: int
    #: None: nobody has asked
    decision: Decision | None
    needs_bytes: int | None
    why: str
    is_asked: bool

    @property
    def width(self) -> float:
        """How much of it the job needs, in percent."""
        return min(100.0, 100.0 * (self.needs_bytes or 0) / self.capacity_bytes)


def describe_job(record: JobRecord) -> str:
    """Name a question: ``Qwen/Qwen2.5-7B, batch 1, fsdp2 on 8 GPUs``."""
    job = record.work.job
    if job is None:
        return describe_subject(record)
    named = f"{describe_subject(record)}, batch {job.batch_size:,}"
    if job.distributed is None or job.distributed.world_size == 1:
        return named
    return f"{named}, {job.distributed.strategy} on {job.distributed.world_size:,} GPUs"


def describe_gpu(record: JobRecord) -> str:
    """Name the GPU of a question."""
    if record.work.gpu is None:
        return "all GPUs"
    return record.work.gpu.name or record.work.target.gpu.name  # an operator may have removed one


def slice_breakdown(breakdown: dict[str, int]) -> list[Slice]:
    """Return what held the memory at the peak, in the order in which the chart stacks it."""
    total = max(1, sum(breakdown.values()))
    slices: list[Slice] = []
    begin = 0.0
    for name, label in CATEGORIES.items():
        size = breakdown.get(name, 0)
        if size <= 0:
            continue
        width = 100.0 * size / total
        slices.append(
            Slice(
                name=name,
                label=label,
                size_bytes=size,
                share=size / total,
                begin=round(begin, 3),
                width=round(width, 3),
            )
        )
        begin += width
    return slices


def list_phases(view: TimelineView) -> list[PhaseRow]:
    """Return the most that was held in each phase: the curve as a table."""
    rows = []
    for span in view.phases:
        shown = range(bisect_left(view.events, span.begin), bisect_left(view.events, span.end))
        if shown:
            rows.append(
                PhaseRow(
                    phase=span.phase,
                    begin=span.begin,
                    end=span.end,
                    reserved_bytes=max(view.reserved[at] for at in shown),
                    allocated_bytes=max(view.allocated[at] for at in shown),
                )
            )
    return rows


def prune_layers(layer: Layer, total: int | None = None, depth: int = 0) -> Layer:
    """Return a tree of layers with the small ones of each put together."""
    total = layer.size_bytes if total is None else total
    least = _MIN_LAYER_SHARE * max(1, total)
    children = layer.children if depth < _MAX_LAYER_DEPTH else ()
    small = [child.size_bytes for child in children if child.size_bytes < least]
    shown = [
        prune_layers(child, total, depth + 1) for child in children if child.size_bytes >= least
    ]
    if sum(small):
        shown.append(Layer(name=f"{len(small)} smaller", size_bytes=sum(small)))
    if depth == 0:  # of a layer, what is in none of those below is its own; at the root, nobody's
        nobodys = layer.size_bytes - sum(child.size_bytes for child in children)
        if nobodys >= least:
            shown.append(Layer(name=NO_LAYER, size_bytes=nobodys))
    return layer.model_copy(update={"children": tuple(shown)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A layer in a table."""

    name: str
    size_bytes: int
    depth: int


def list_layers(layer: Layer, depth: int = 0) -> Iterator[LayerRow]:
    """Return a tree as rows, each with its depth: the same for readers who cannot see it."""
    for child in layer.children:
        yield LayerRow(name=child.name, size_bytes=child.size_bytes, depth=depth)
        yield from list_layers(child, depth + 1)


def strip_of(record: JobRecord, fit: Fit | None) -> list[GpuCell]:
    """Return every GPU of the catalogue, the smallest first.

    From the answer about all of them if there is one, otherwise from this one as far as it goes. A
    trace is the same on all GPUs; a run only on those of its generation, and nothing is known about
    the others.
    """
    asked = record.work.gpu.name if record.work.gpu else None
    if fit is not None:
        return [
            GpuCell(
                name=entry.gpu,
                capacity_bytes=entry.capacity_bytes,
                decision=entry.decision,
                needs_bytes=entry.needs_bytes,
                why=entry.reason.message,
                is_asked=entry.gpu == asked,
            )
            for entry in fit.gpus
        ]
    said = record.estimate
    if said is None:
        return []
    return [_judge_elsewhere(record, said, gpu) for gpu in list_gpus()]


def _judge_elsewhere(record: JobRecord, said: Estimate, gpu: GpuSpec) -> GpuCell:
    """Decide about a job on a GPU that was not asked about, by its needs on the one that was."""
    assert record.work.gpu is not None
    asked = record.work.target.gpu
    is_asked = gpu.name == record.work.gpu.name
    decision: Decision | None
    if is_asked:  # this already includes doubts and other processes on the GPU
        decision, why = said.decision, said.explanation.headline
    elif record.work.job is not None and gpu.generation != asked.generation:
        decision, why = None, "another generation, which runs other kernels: not asked yet"
    else:
        sizes = Sizes(said.needs_bytes, said.least_bytes, gpu.memory_bytes)
        decision, doubts = decide_by_sizes(sizes), []
        if decision is Decision.ADMIT and _is_doubted(said, gpu):
            decision, doubts = Decision.UNCERTAIN, _tell_doubts(said, gpu)
        why = explain(decision, gpu.name, sizes, why=doubts).text
    return GpuCell(
        name=gpu.name,
        capacity_bytes=gpu.memory_bytes,
        decision=decision,
        needs_bytes=None if decision is None else said.needs_bytes,
        why=why,
        is_asked=is_asked,
    )


def _tell_doubts(said: Estimate, gpu: GpuSpec) -> list[str]:
    """Return why a job is not admitted on a GPU where it would fit by its size."""
    if _is_kept_off(said, gpu):
        return [NO_MIG]
    recording = said.recording
    if recording is None:
        return said.explanation.why
    own = [reason.message for reason in said.reasons if reason.code not in ESTIMATE_CODES]
    if gpu.name == recording.gpu:
        return own
    return [f"recorded for {recording.gpu}; ask about {gpu.name} to see how they differ", *own]


def _is_doubted(said: Estimate, gpu: GpuSpec) -> bool:
    """Return whether the run or trace is in doubt: then the job is admitted nowhere.

    What was measured on a GPU is in doubt where only its replay fits, and what was recorded for a
    GPU on GPUs of another kind.
    """
    if _is_kept_off(said, gpu):
        return True
    if (said.engine == MEASURED or said.recording is not None) and gpu.name not in said.fits_on:
        return True
    if said.recording is not None:
        return False
    sizes = Sizes(said.needs_bytes, said.least_bytes, said.available_bytes)
    return decide_by_sizes(sizes) is Decision.ADMIT and said.decision is not Decision.ADMIT


def _is_kept_off(said: Estimate, gpu: GpuSpec) -> bool:
    """Return whether it is a part of a GPU, and the job has ranks that communicate by NCCL."""
    return gpu.is_part and said.communication is not None and gpu.name not in said.fits_on


def capacity_line(record: JobRecord) -> int:
    """Return how much of the GPU the allocator can take: where the chart draws its line."""
    said = record.estimate
    communication = said.communication_range.expected_bytes if said else 0
    return left_for_segments(record.work.target, communication)
