"""A way to run jobs -> the answers about one: on a GPU, on every GPU, at the largest batch.

Shared by every door: the worker brings stored runs, the command line its own engine. No rq, no
torch: running the job is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay
from memgate.capacity import MemoryNeeds
from memgate.data_sizes import allow_for_data
from memgate.decision import Decision
from memgate.doubts import find_doubts
from memgate.errors import Fault, LimitExceededError, MemgateError, NoKernelsError
from memgate.gpus import CATALOGUE, GpuSpec, GpuTarget
from memgate.max_batch import MaxBatch
from memgate.measured import doubt_reserved, quote_peaks
from memgate.pipeline import estimate_timeline
from memgate.ranks import RankAnswer, find_worst, join_ranks
from memgate.report import Estimate, Fit, FitEntry, Reason
from memgate.run_key import GpuTraits
from memgate.timeline_file.job_phases import find_phase_peaks
from memgate.varied import note_lengths
from memgate_worker.batch_search import BatchSearch
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import named_runtime, why_no_kernels

if TYPE_CHECKING:  # a process that judges an upload has no job spec, and starts sooner without
    from memgate.jobspec import JobSpec

    #: runs a job for a GPU
    Tracer = Callable[[JobSpec, GpuSpec], TracedJob]

#: faults whose errors may concern only one kind of GPU
_OF_ONE_GPU = (Fault.JOB, Fault.UNSUPPORTED)

#: how far from the limit an answer for one GPU must be to hold for others of its generation
_CLEAR = 0.1


class RunNeeds(NamedTuple):
    """What each process of a run needs, in the order of ``TracedJob.ranks``."""

    of_ranks: tuple[MemoryNeeds, ...]

    @property
    def ample(self) -> Replay:
        """What the first of them would do with unlimited memory."""
        return self.of_ranks[0].ample


class RunAnswer(NamedTuple):
    """An estimate, and the rank that decided it: of a job of one process, that one."""

    estimate: Estimate
    traced: TracedJob
    needs: MemoryNeeds


def estimate_run(traced: TracedJob, target: GpuTarget, needs: RunNeeds | None = None) -> Estimate:
    """Say whether a job that was run fits on a GPU; ``needs`` as ``find_needs`` returns them."""
    return answer_run(traced, target, needs).estimate


def answer_run(traced: TracedJob, target: GpuTarget, needs: RunNeeds | None = None) -> RunAnswer:
    """Say whether a job fits, each of its ranks on a GPU of its own, and which rank decided."""
    of_ranks = (needs or find_needs(traced)).of_ranks
    ranks = traced.ranks
    said = [
        RankAnswer(one.rank, _estimate_rank(one, target, needs))
        for one, needs in zip(ranks, of_ranks, strict=True)
    ]
    worst = find_worst(said)
    estimate = said[worst].estimate
    if traced.world_size > 1:
        estimate = join_ranks(said, traced.world_size)
    return RunAnswer(estimate, ranks[worst], of_ranks[worst])


def _estimate_rank(traced: TracedJob, target: GpuTarget, needs: MemoryNeeds) -> Estimate:
    peaks = traced.peaks
    said = estimate_timeline(
        traced.timeline,
        target,
        alloc_conf=traced.alloc_conf,
        engine=traced.engine,
        runtime=traced.runtime,
        versions=traced.versions,
        notes=traced.notes,
        doubts=(*traced.doubts, *(doubt_reserved(peaks, target) if peaks else ())),
        architectures=traced.architectures,
        needs=needs,
        used=traced.communication,
    )
    beside = said.communication_range.expected_bytes
    phases = find_phase_peaks(traced.marks, needs.ample, beside)
    said = said.model_copy(update={"phases": phases, "traffic": traced.traffic})
    if traced.doubts or find_doubts(traced.timeline):  # they are the same on every GPU
        said = said.model_copy(update={"fits_on": []})
    said = quote_peaks(said, peaks) if peaks else said
    if traced.varied is not None:
        said = note_lengths(said, traced.varied, traced.marks, needs.ample, traced.alloc_conf)
    return allow_for_data(said, traced.least_segments_bytes, target)


def find_needs(traced: TracedJob) -> RunNeeds:
    """Return what a job that was run needs, to be used for several GPUs or a picture."""
    return RunNeeds(
        tuple(MemoryNeeds(one.timeline, parse_alloc_conf(one.alloc_conf)) for one in traced.ranks)
    )


def largest_batch(
    trace: Tracer,
    job: JobSpec,
    target: GpuTarget,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    on_said: Callable[[int, Estimate], None] = lambda *_: None,
) -> MaxBatch | None:
    """Find the largest batch of a job that is admitted; None if ``goes_on`` ended the search.

    ``on_said`` is told of each size that was run.
    """

    def run(batch_size: int) -> TracedJob:
        return trace(job.model_copy(update={"batch_size": batch_size}), target.gpu)

    search = BatchSearch(run, lambda traced: estimate_run(traced, target))
    return search.find(job.batch_size, goes_on, on_said)


def fit_everywhere(
    trace: Tracer,
    job: JobSpec,
    on_gpus: Callable[[list[FitEntry]], None] = lambda _: None,
    *,
    engine: str = "auto",
) -> Fit:
    """Say for every GPU of the catalogue whether a job fits; ``on_gpus`` is told of each result.

    Each GPU gets the decision that ``estimate`` would take. GPUs share a run if their ``GpuTraits``
    are the same for the engine, or as ``fit_groups`` says. Raises what ``fit_groups`` raises.
    """
    groups = group_by_run(CATALOGUE.values(), job, engine)
    return fit_groups(_WithKernels(trace, job), groups, on_gpus)


def fit_groups(
    trace: Callable[[GpuSpec], TracedJob],
    groups: Iterable[list[GpuSpec]],
    on_gpus: Callable[[list[FitEntry]], None] = lambda _: None,
) -> Fit:
    """Say for groups of GPUs that share a run whether a job fits.

    A group is also answered by the run for another GPU of its generation if that leaves no doubt:
    see ``_SettledByOthers``.

    Raises:
        MemgateError: the last one, if the job has no answer on any of them; immediately, if the
            error is not about the job on that GPU, or the next run would exceed the same limit.
    """
    entries: list[FitEntry] = []
    failures: list[MemgateError] = []
    share_needs = _NeedsByTimeline()
    settled = _SettledByOthers()
    trace = _FailingOnce(trace)
    for gpus in groups:
        if known := settled.find(gpus):
            entries += known
            on_gpus(known)
            continue
        try:
            traced = trace(gpus[0])
        except MemgateError as error:
            if error.fault not in _OF_ONE_GPU or isinstance(error, LimitExceededError):
                raise
            failures.append(error)
            reason = Reason(code=error.code, message=error.message)
            known = [FitEntry.unknown(gpu, reason) for gpu in gpus]
        else:
            needs = share_needs(traced)
            settled.add(gpus[0], traced, needs)
            known = [
                FitEntry.of(gpu, estimate_run(traced, GpuTarget(gpu=gpu), needs)) for gpu in gpus
            ]
        entries += known
        on_gpus(known)
    if all(entry.decision is Decision.UNKNOWN for entry in entries):
        raise failures[-1]
    entries.sort(key=lambda entry: (entry.capacity_bytes, entry.gpu))
    fitting = [entry.gpu for entry in entries if entry.decision is Decision.ADMIT]
    return Fit(gpus=entries, smallest=fitting[0] if fitting else None)


class _SettledByOthers:
    """Answers for GPUs whose capacity is far from what a job needs on others of their generation.

    Multiprocessors change what a job needs, by up to 1.8 % within a generation (``GpuTraits``). So
    a GPU that has a tenth more than that, or lacks a tenth, needs no run of its own. Where memory
    chooses kernels (``cudnn_benchmark``), and where a run is in doubt, every group is run.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[tuple[GpuSpec, TracedJob, RunNeeds]]] = {}

    def add(self, gpu: GpuSpec, traced: TracedJob, needs: RunNeeds) -> None:
        """Keep a run for other GPUs."""
        if not traced.cudnn_benchmark and not traced.doubts and traced.peaks is None:
            self._runs.setdefault(gpu.generation, []).append((gpu, traced, needs))

    def find(self, gpus: list[GpuSpec]) -> list[FitEntry]:
        """Return the answers for GPUs that share a run; none if one of them needs that run."""
        runs = self._runs.get(gpus[0].generation, [])
        if not runs:
            return []
        wanted = gpus[0].multiprocessors
        run_for, traced, needs = min(runs, key=lambda run: abs(run[0].multiprocessors - wanted))
        if not gpus[0].has_kernels(traced.architectures):
            return []
        said = [estimate_run(traced, GpuTarget(gpu=gpu), needs) for gpu in gpus]
        if not all(map(_is_settled, said)):
            return []
        pairs = zip(gpus, said, strict=True)
        return [FitEntry.of(gpu, one, run_for=run_for.name) for gpu, one in pairs]


def _is_settled(said: Estimate) -> bool:
    """Say whether a job would get the same decision if it needed a tenth more, or less."""
    if said.decision is Decision.ADMIT:
        return said.needs_bytes * (1 + _CLEAR) <= said.available_bytes
    return said.decision is Decision.REJECT and (
        said.least_bytes * (1 - _CLEAR) > said.available_bytes
    )


class _FailingOnce:
    """Runs a failing job only once per GPU generation: multiprocessors do not decide that."""

    def __init__(self, trace: Callable[[GpuSpec], TracedJob]) -> None:
        self._trace = trace
        self._failed: dict[str, MemgateError] = {}

    def __call__(self, gpu: GpuSpec) -> TracedJob:
        if gpu.generation in self._failed:
            raise self._failed[gpu.generation]
        try:
            return self._trace(gpu)
        except NoKernelsError:  # depends on the exact compute capability
            raise
        except MemgateError as error:
            self._failed[gpu.generation] = error
            raise


class _WithKernels:
    """Runs a job only on GPUs that its PyTorch was built for, once it has said which they are."""

    def __init__(self, trace: Tracer, job: JobSpec) -> None:
        self._trace = trace
        self._job = job
        self._traced: TracedJob | None = None

    def __call__(self, gpu: GpuSpec) -> TracedJob:
        if self._traced and not gpu.has_kernels(self._traced.architectures):
            raise NoKernelsError(why_no_kernels(named_runtime(self._traced.runtime), gpu))
        self._traced = self._trace(self._job, gpu)
        return self._traced


class _NeedsByTimeline:
    """Runs for different GPUs often have the same events: their needs are computed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, RunNeeds] = {}

    def __call__(self, traced: TracedJob) -> RunNeeds:
        # much faster to compare than the timelines are
        encoded = msgspec.msgpack.encode([(one.timeline, one.alloc_conf) for one in traced.ranks])
        if encoded not in self._known:
            self._known[encoded] = find_needs(traced)
        return self._known[encoded]


def group_by_run(gpus: Iterable[GpuSpec], job: JobSpec, engine: str) -> Iterator[list[GpuSpec]]:
    """Group GPUs that share a run of a job, those with the most multiprocessors first."""
    found: dict[GpuTraits, list[GpuSpec]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.multiprocessors):
        found.setdefault(GpuTraits.of(gpu, job, engine), []).append(gpu)
    return iter(found.values())
