"""RecordedTimeline -> Estimate: what a recording says about a GPU, and about one of another kind.

A job that was recorded for a GPU does the same on every GPU of the same traits: there a replay is
exact. On others, libraries choose other kernels and with them other scratch memory, so that a
replay is a guess: it may reject a job and never admits one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.data_sizes import allow_for_data
from memgate.errors import NoKernelsError, TimelineFileError
from memgate.gpus import CATALOGUE, GpuSpec, GpuTarget
from memgate.pipeline import estimate_timeline
from memgate.ranks import RankAnswer, find_worst, join_ranks
from memgate.report import RECORDED_FOR_ANOTHER_GPU, Estimate, Reason, RecordingSummary
from memgate.run_key import GpuTraits
from memgate.timeline_file.job_phases import find_phase_peaks
from memgate.timeline_file.recorded import RecordedTimeline

#: shapes of batches that an answer names; a recording may have seen many
_MAX_SHAPES = 20


class RecordedAnswer(NamedTuple):
    """An estimate, and the rank that decided it: of a job of one process, that one."""

    estimate: Estimate
    recorded: RecordedTimeline
    needs: MemoryNeeds


def find_recorded_needs(
    recorded: RecordedTimeline, alloc_conf: str = ""
) -> tuple[MemoryNeeds, ...]:
    """Return what each recorded rank of a job needs, to be used for several GPUs or a picture.

    Raises:
        TimelineFileError: if there is no memory in which one runs: then it was not recorded.
    """
    return tuple(_find_needs(one, alloc_conf) for one in recorded.ranks)


def _find_needs(recorded: RecordedTimeline, alloc_conf: str) -> MemoryNeeds:
    needs = MemoryNeeds(recorded.timeline, parse_alloc_conf(alloc_conf or recorded.alloc_conf))
    if (oom := needs.ample.oom) is not None:
        raise TimelineFileError(
            f"event {oom.event_index} finds no memory on a GPU of 8 TiB, on which jobs are"
            " recorded; record it again: memgate run -o FILE"
        )
    return needs


def estimate_recorded(
    recorded: RecordedTimeline,
    target: GpuTarget,
    *,
    alloc_conf: str = "",
    needs: Sequence[MemoryNeeds] = (),
) -> Estimate:
    """Say whether a recorded job fits on a GPU, each of its ranks on one of its own.

    Args:
        recorded: the job.
        target: the GPU.
        alloc_conf: a ``PYTORCH_ALLOC_CONF`` string; takes the place of the recording's own.
        needs: as ``find_recorded_needs`` returns them for these settings.

    Raises:
        NoKernelsError: if the job's PyTorch was not built for the GPU.
        TimelineFileError: if the recording contradicts itself.
    """
    return answer_recorded(recorded, target, alloc_conf=alloc_conf, needs=needs).estimate


def answer_recorded(
    recorded: RecordedTimeline,
    target: GpuTarget,
    *,
    alloc_conf: str = "",
    needs: Sequence[MemoryNeeds] = (),
) -> RecordedAnswer:
    """Say the same as ``estimate_recorded``, and which rank decided."""
    gpu = target.gpu
    if not gpu.has_kernels(recorded.architectures):
        raise NoKernelsError(
            f"the job's PyTorch ({recorded.runtime}) was not built for {gpu.name}, only for"
            f" {', '.join(recorded.architectures)}; record it with another PyTorch"
        )
    needs = needs or find_recorded_needs(recorded, alloc_conf)
    said = [
        RankAnswer(one.rank, _estimate_rank(one, target, alloc_conf, needed))
        for one, needed in zip(recorded.ranks, needs, strict=True)
    ]
    worst = find_worst(said)
    estimate = said[worst].estimate
    if recorded.world_size > 1:
        estimate = join_ranks(said, recorded.world_size)
    return RecordedAnswer(estimate, recorded.ranks[worst], needs[worst])


def _estimate_rank(
    recorded: RecordedTimeline, target: GpuTarget, alloc_conf: str, needs: MemoryNeeds
) -> Estimate:
    said = estimate_timeline(
        recorded.timeline,
        target,
        alloc_conf=alloc_conf or recorded.alloc_conf,
        engine=recorded.engine,
        runtime=recorded.runtime,
        versions=dict(recorded.versions),
        notes=recorded.notes,
        doubts=(*recorded.doubts, *doubt_other_gpu(recorded, target.gpu)),
        architectures=recorded.architectures,
        needs=needs,
        used=recorded.communication,
        family=recorded.family,
        workspaces=recorded.workspaces,
    )
    said = allow_for_data(said, recorded.least_segments_bytes, target)
    return said.model_copy(
        update={
            "fits_on": _admitting(recorded, said.fits_on),
            "phases": find_phase_peaks(
                recorded.marks,
                needs.ample,
                said.communication_range.expected_bytes,
                said.context_bytes,
            ),
            "recording": describe_recording(recorded),
        }
    )


def doubt_other_gpu(recorded: RecordedTimeline, gpu: GpuSpec) -> tuple[Reason, ...]:
    """Return why a replay is a guess on a GPU, and how to record the job for it, if it is one."""
    if recorded.is_exact_for(gpu):
        return ()
    is_memory = recorded.gpu.traits.memory_bytes is not None
    wanted = GpuTraits(
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.multiprocessors,
        memory_bytes=gpu.memory_bytes if is_memory else None,
    )
    return (
        Reason(
            code=RECORDED_FOR_ANOTHER_GPU,
            message=f"the job was recorded for {recorded.gpu.name}"
            f" ({_tell_traits(recorded.gpu.traits)}), and {gpu.name} ({_tell_traits(wanted)}) may"
            f" run other kernels with other scratch memory; {_how_to_record(recorded, gpu)}",
        ),
    )


def _tell_traits(traits: GpuTraits) -> str:
    major, minor = traits.compute_capability
    told = [f"compute capability {major}.{minor}"]
    if traits.multiprocessors is not None:
        told.append(f"{traits.multiprocessors} multiprocessors")
    if traits.memory_bytes is not None:
        told.append(f"{traits.memory_bytes} bytes of memory")
    return ", ".join(told)


def _how_to_record(recorded: RecordedTimeline, gpu: GpuSpec) -> str:
    major, minor = gpu.compute_capability
    described = f'{{"memory_bytes": {gpu.memory_bytes}, "compute_capability": "{major}.{minor}"}}'
    name = gpu.name if gpu.name in CATALOGUE else shlex.quote(described)
    if recorded.command:
        return f"record it for this one: memgate run --gpu {name} -- {shlex.join(recorded.command)}"
    return f"record it for this one: memgate estimate SPEC --gpu {name} -o FILE"


def _admitting(recorded: RecordedTimeline, fits_on: list[str]) -> list[str]:
    """Keep the GPUs on which the job would be admitted: none if the recording is in doubt."""
    if recorded.doubts:
        return []
    return [name for name in fits_on if recorded.is_exact_for(CATALOGUE[name])]


def describe_recording(recorded: RecordedTimeline) -> RecordingSummary:
    """Say what was recorded, for people."""
    return RecordingSummary(
        command=shlex.join(recorded.command),
        gpu=recorded.gpu.name,
        num_steps=len({mark.step for mark in recorded.marks if mark.step is not None}),
        batches=[
            f"{batch.name}: {batch.dtype} {list(batch.shape)}, {batch.num_batches} times"
            for batch in recorded.batches[:_MAX_SHAPES]
        ],
        memgate=recorded.memgate_version,
    )
