"""Runs of our engines -> recordings, and timeline files -> answers: nothing is run for them.

What a recording says is decided in ``memgate.timeline_file``; here it is timed, and put into the
types of this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from memgate.decision import Decision
from memgate.errors import NoKernelsError
from memgate.gpus import GpuSpec, GpuTarget, list_gpus
from memgate.report import Fit, FitEntry, Reason
from memgate.run_key import GpuTraits
from memgate.timeline import Phase, Timeline
from memgate.timeline_file.answers import (
    answer_recorded,
    estimate_recorded,
    find_recorded_needs,
)
from memgate.timeline_file.document import ReadLimits
from memgate.timeline_file.reading import read_timeline
from memgate.timeline_file.recorded import (
    BatchShape,
    JobMark,
    JobPhase,
    RecordedGpu,
    RecordedTimeline,
)
from memgate.version import __version__
from memgate_worker.engines.revision import ENGINE_REVISION
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timings import TimedEstimate

_LIMITS = ReadLimits()


def record_run(
    traced: TracedJob,
    gpu: GpuSpec,
    *,
    command: Sequence[str] = (),
    cudnn: str | None = None,
    batches: Sequence[BatchShape] = (),
) -> RecordedTimeline:
    """Turn a run that an engine made for a GPU into a recording.

    ``command`` is what was run, ``cudnn`` the version of the real cuDNN if there was one. If it
    has no marks, training steps are found by the phases of iterations.
    """
    assert traced.engine in ("phantom", "profile"), "what was measured is not a recording"
    is_phantom = traced.engine == "phantom"
    traits = GpuTraits(
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.multiprocessors,
        memory_bytes=gpu.memory_bytes if traced.cudnn_benchmark else None,
    )
    return RecordedTimeline(
        timeline=traced.timeline,
        engine="phantom" if is_phantom else "profile",
        command=tuple(command),
        gpu=RecordedGpu(name=gpu.name, memory_bytes=gpu.memory_bytes, traits=traits),
        versions=traced.versions,
        cudnn=cudnn,
        alloc_conf=traced.alloc_conf,
        num_parameters=traced.num_parameters,
        architectures=traced.architectures,
        marks=traced.marks or tuple(mark_steps(traced.timeline)),
        batches=tuple(batches),
        notes=traced.notes,
        doubts=traced.doubts,
        least_segments_bytes=traced.least_segments_bytes,
        family=traced.family,
        workspaces=traced.workspaces,
        rank=traced.rank,
        world_size=traced.world_size,
        other_ranks=tuple(
            record_run(other, gpu, command=command, cudnn=cudnn, batches=batches)
            for other in traced.other_ranks
        ),
        communication=traced.communication,
        memgate_version=__version__,
        engine_revision=ENGINE_REVISION,
    )


def mark_steps(timeline: Timeline) -> Iterator[JobMark]:
    """Find training steps by the phases of iterations: the forward pass after an optimizer step.

    An optimizer that takes no memory has no phase; then a backward pass ends a step.
    """
    yield JobMark(0, JobPhase.LOAD)
    has_optimizer = any(start.phase is Phase.OPTIMIZER for start in timeline.phases)
    last = Phase.OPTIMIZER if has_optimizer else Phase.BACKWARD
    step, is_done = 0, True
    for start in timeline.phases:
        if start.phase is last:
            is_done = True
        elif start.phase is Phase.FORWARD and is_done:
            yield JobMark(start.event_index, JobPhase.TRAIN, step)
            step, is_done = step + 1, False


def estimate_recording(
    stream: BinaryIO,
    target: GpuTarget,
    *,
    alloc_conf: str = "",
    max_bytes: int = _LIMITS.max_unpacked_bytes,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> TimedEstimate:
    """Say whether the job of a timeline file fits; ``alloc_conf`` replaces its own settings.

    Raises:
        TimelineFileError: if it is not one, or breaks a rule of the format.
        NoKernelsError: if the job's PyTorch was not built for the GPU.
        InputError: if the settings are wrong.
        UnsupportedAllocatorError: if they are not simulated.
    """
    start = time.perf_counter()
    recorded = read_timeline(stream, _limits(max_bytes), on_unpacked=on_unpacked)
    read_at = time.perf_counter()
    answer = answer_recorded(recorded, target, alloc_conf=alloc_conf)
    end = time.perf_counter()
    seconds = {"run": 0.0, "trace": read_at - start, "replay": end - read_at, "total": end - start}
    timings = {name: round(value * 1000) for name, value in seconds.items()}
    traced = _restore(answer.recorded, alloc_conf, read_at - start)
    said = answer.estimate.model_copy(update={"timings_ms": timings})
    return TimedEstimate(said, traced, answer.needs)


def fit_recording(
    stream: BinaryIO,
    *,
    alloc_conf: str = "",
    max_bytes: int = _LIMITS.max_unpacked_bytes,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> Fit:
    """Say for every GPU of the catalogue whether the job of a timeline file fits.

    Raises what ``estimate_recording`` raises, but for ``NoKernelsError``: a GPU that the job's
    PyTorch was not built for is unknown.
    """
    recorded = read_timeline(stream, _limits(max_bytes), on_unpacked=on_unpacked)
    needs = find_recorded_needs(recorded, alloc_conf)
    entries = []
    for gpu in list_gpus():
        target = GpuTarget(gpu=gpu)
        try:
            said = estimate_recorded(recorded, target, alloc_conf=alloc_conf, needs=needs)
        except NoKernelsError as error:
            reason = Reason(code=error.code, message=error.message)
            entries.append(FitEntry.unknown(gpu, reason))
        else:
            entries.append(FitEntry.of(gpu, said))
    fitting = [entry.gpu for entry in entries if entry.decision is Decision.ADMIT]
    return Fit(gpus=entries, smallest=fitting[0] if fitting else None)


def _limits(max_bytes: int) -> ReadLimits:
    return ReadLimits(max_unpacked_bytes=min(max_bytes, _LIMITS.max_unpacked_bytes))


def _restore(recorded: RecordedTimeline, alloc_conf: str, seconds: float) -> TracedJob:
    return TracedJob(
        timeline=recorded.timeline,
        engine=recorded.engine,
        runtime=recorded.runtime,
        versions=dict(recorded.versions),
        alloc_conf=alloc_conf or recorded.alloc_conf,
        num_parameters=recorded.num_parameters,
        notes=recorded.notes,
        doubts=recorded.doubts,
        marks=recorded.marks,
        architectures=recorded.architectures,
        least_segments_bytes=recorded.least_segments_bytes,
        family=recorded.family,
        workspaces=recorded.workspaces,
        rank=recorded.rank,
        world_size=recorded.world_size,
        communication=recorded.communication,
        seconds=seconds,
    )
