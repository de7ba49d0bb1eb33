"""JobSpec -> Timeline, by an estimator that is not ours. Context managers, like all engines.

The job's runtime describes the job (``probe``), the estimator makes a timeline of that. TBEM tests
the job itself, at two smaller batches, on the phantom.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.errors import NoKernelsError
from memgate.estimators import Baseline, JobFacts
from memgate.estimators.parts import hold
from memgate.estimators.tbem import LIMITS, SOURCE, choose_batches, extrapolate_peak
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec, check_supported
from memgate.report import Reason
from memgate.timeline import Category, Timeline
from memgate_worker.engines.host_client import Host
from memgate_worker.engines.identity import identify_engine
from memgate_worker.engines.messages import FactsRun, Request
from memgate_worker.engines.phantom.engine import PhantomEngine, describe_device
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.runtimes.runtime import Runtime, why_no_kernels
from memgate_worker.sandbox.policy import STRICTEST, SandboxPolicy

#: facts of jobs that are kept: estimators differ, the job does not
_NUM_REMEMBERED = 16

#: by runtime, job and GPU, whichever estimator asked
_described: OrderedDict[tuple[object, ...], JobFacts] = OrderedDict()


class EstimatorEngine:
    """An estimator of others, and a host process of one runtime that describes jobs to it."""

    def __init__(
        self, estimator: Baseline, runtime: Runtime, policy: SandboxPolicy = STRICTEST
    ) -> None:
        """Start nothing: what is described already needs no process."""
        self.name = estimator.name
        self._estimator = estimator
        self._runtime = runtime
        self._policy = policy
        self._made_by = identify_engine(runtime)
        self._started: Host | None = None

    def __enter__(self) -> EstimatorEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """End the host."""
        if self._started is not None:
            self._started.close()

    def stop_job(self) -> None:
        """End the job that runs, if one does."""
        if self._started is not None:
            self._started.stop_job()

    def trace(
        self, spec: JobSpec, gpu: GpuSpec, *, limits: RunLimits = DEFAULT_LIMITS
    ) -> TracedJob:
        """Describe a job, and return what the estimator makes of it.

        Raises:
            UnsupportedJobError: if the estimator knows no such jobs.
            MemgateError: what the phantom raises.
        """
        check_supported(spec)
        start = time.perf_counter()
        facts = self.describe(spec, gpu, limits)
        if not gpu.has_kernels(facts.architectures):
            raise NoKernelsError(why_no_kernels(self._runtime, gpu))
        about = self._estimator
        return TracedJob(
            timeline=about.estimate(spec, facts),
            engine=self.name,
            runtime=self._runtime.name,
            versions=facts.versions,
            alloc_conf=spec.allocator,
            num_parameters=facts.num_parameters,
            notes=(note_comparison(self.name, about.source, about.limits),),
            architectures=facts.architectures,
            seconds=time.perf_counter() - start,
        )

    def describe(self, spec: JobSpec, gpu: GpuSpec, limits: RunLimits = DEFAULT_LIMITS) -> JobFacts:
        """Return what there is to know of a job without running it. Raises what ``trace`` does."""
        alone = spec.model_copy(update={"distributed": None})  # formulas divide by themselves
        job = alone.model_dump_json(by_alias=True)
        tracks = self._estimator.tracks
        key = (self._made_by, gpu.compute_capability, gpu.multiprocessors, tracks, job)
        if key not in _described:
            request = Request(
                work=FactsRun(spec=job, tracks=tracks),
                environment=describe_device(gpu),
                limits=limits,
            )
            answer = self._host.ask(request)
            assert isinstance(answer, JobFacts)
            _described[key] = answer
            if len(_described) > _NUM_REMEMBERED:
                _described.popitem(last=False)
        return _described[key]

    @property
    def _host(self) -> Host:
        if self._started is None:
            self._started = Host(self._runtime, policy=self._policy)
        return self._started


class TestingEngine:
    """TBEM: the phantom stands in for the GPU that it tests on."""

    name = "tbem"

    def __init__(self, runtime: Runtime, policy: SandboxPolicy = STRICTEST) -> None:
        """Start the phantom."""
        self._phantom = PhantomEngine(runtime, policy)

    def __enter__(self) -> TestingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """End the phantom."""
        self._phantom.__exit__(None, None, None)

    def stop_job(self) -> None:
        """End the job that runs, if one does."""
        self._phantom.stop_job()

    def trace(
        self, spec: JobSpec, gpu: GpuSpec, *, limits: RunLimits = DEFAULT_LIMITS
    ) -> TracedJob:
        """Test a job at two smaller batches, and extrapolate. Raises what the phantom raises."""
        start = time.perf_counter()
        tested = choose_batches(spec.batch_size)
        runs = [
            self._phantom.trace(spec.model_copy(update={"batch_size": batch}), gpu, limits=limits)
            for batch in tested
        ]
        low, high = (_peak(run.timeline) for run in runs)
        size = extrapolate_peak(tested, (low, high), spec.batch_size)
        return TracedJob(
            timeline=hold({Category.OTHER: size}),
            engine=self.name,
            runtime=runs[0].runtime,
            versions=runs[0].versions,
            alloc_conf=spec.allocator,
            num_parameters=runs[0].num_parameters,
            notes=(note_comparison(self.name, SOURCE, LIMITS),),
            architectures=runs[0].architectures,
            seconds=time.perf_counter() - start,
        )


def _peak(timeline: Timeline) -> int:
    return MemoryNeeds(timeline, parse_alloc_conf("")).ample.peak_reserved_bytes


def note_comparison(name: str, source: str, limits: str) -> Reason:
    """Say that an answer is an estimator's that is not ours, and what of it is not known."""
    message = f"engine {name} is here to be compared with ({source}): {limits}"
    return Reason(code="COMPARISON_ONLY", message=message)
