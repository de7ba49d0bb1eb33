"""A way to run jobs -> what is said of one: on a GPU, on every GPU, at the largest batch.

What every door has in common: the worker brings runs that are stored, the command line an engine
of its own. No rq, no torch; who runs the job, and where from, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from memgate.decision import Decision
from memgate.errors import Fault, LimitExceededError, MemgateError
from memgate.gpus import CATALOGUE, GpuSpec, GpuTarget
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch, find_max_batch
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate, Fit, FitEntry, Reason
from memgate_worker.engines.traced import TracedJob

#: whose errors may be about a job on one kind of GPU only
_OF_ONE_GPU = (Fault.JOB, Fault.UNSUPPORTED)

#: runs a job for a GPU
Tracer = Callable[[JobSpec, GpuSpec], TracedJob]


def judge(traced: TracedJob, target: GpuTarget) -> Estimate:
    """Say whether a job that was run fits on a GPU."""
    return estimate_timeline(
        traced.timeline,
        target,
        alloc_conf=traced.alloc_conf,
        engine=traced.engine,
        runtime=traced.runtime,
        versions=traced.versions,
        notes=traced.notes,
        doubts=traced.doubts,
        architectures=traced.architectures,
    )


def largest_batch(
    trace: Tracer,
    job: JobSpec,
    target: GpuTarget,
    *,
    known: Estimate | None = None,
    goes_on: Callable[[], bool] = lambda: True,
    on_said: Callable[[int, Estimate], None] = lambda *_: None,
) -> MaxBatch | None:
    """Find the largest batch of a job that is admitted; None if ``goes_on`` ended the search.

    ``known`` is what was said of the job as it is; ``on_said`` hears of each size that was tried.
    """

    def ask(batch_size: int) -> Estimate:
        if batch_size == job.batch_size and known is not None:
            return known
        other = job.model_copy(update={"batch_size": batch_size})
        said = judge(trace(other, target.gpu), target)
        on_said(batch_size, said)
        return said

    return find_max_batch(ask, job.batch_size, goes_on)


def fit_everywhere(
    trace: Tracer, job: JobSpec, on_gpus: Callable[[list[FitEntry]], None] = lambda _: None
) -> Fit:
    """Say for every GPU of the catalogue whether a job fits; ``on_gpus`` hears as they are known.

    Raises:
        MemgateError: the last one, if the job has no answer on any of them; at once, if the error
            is not about the job on that GPU, or the next run would exceed the same limit.
    """
    entries: list[FitEntry] = []
    failures: list[MemgateError] = []
    for gpus in generations(CATALOGUE.values()):
        try:
            traced = trace(job, gpus[0])
        except MemgateError as error:
            if error.fault not in _OF_ONE_GPU or isinstance(error, LimitExceededError):
                raise
            failures.append(error)
            reason = Reason(code=error.code, message=error.message)
            known = [FitEntry.unknown(gpu, reason) for gpu in gpus]
        else:
            known = [FitEntry.of(gpu, judge(traced, GpuTarget(gpu=gpu))) for gpu in gpus]
        entries += known
        on_gpus(known)
    if all(entry.decision is Decision.UNKNOWN for entry in entries):
        raise failures[-1]
    entries.sort(key=lambda entry: entry.capacity_bytes)
    fitting = [entry.gpu for entry in entries if entry.decision is Decision.ADMIT]
    return Fit(gpus=entries, smallest=fitting[0] if fitting else None)


def generations(gpus: Iterable[GpuSpec]) -> Iterator[list[GpuSpec]]:
    """Group GPUs that share a run."""
    found: dict[str, list[GpuSpec]] = {}
    for gpu in gpus:
        found.setdefault(gpu.generation, []).append(gpu)
    return iter(found.values())
