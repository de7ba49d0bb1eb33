"""JobSpec -> Timeline: the job runs on a GPU that is not there.

A host process of the job's runtime runs it (``host``); this side asks, reads what it says, and
checks the simulator against it: a replay on the device of the run must show exactly the peaks that
the real allocator had. Other capacities, GPUs and settings need no other run, only other replays.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace

from msgspec import structs

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import NoKernelsError, SimulationError, TimelineError
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec, check_supported
from memgate.run_key import RunKey
from memgate.timeline import Timeline
from memgate_worker.engines.host_client import Host
from memgate_worker.engines.identity import identify_engine
from memgate_worker.engines.messages import JobRun, RecordedRun, Request
from memgate_worker.engines.phantom.chosen_ranks import describe_rank, find_ranks
from memgate_worker.engines.phantom.data_sizes import DATA_SIZES, join_ends
from memgate_worker.engines.phantom.encoders import doubt_encoders
from memgate_worker.engines.phantom.heads import note_head
from memgate_worker.engines.phantom.kernels import doubt_other_kernels, note_flash_attention
from memgate_worker.engines.phantom.no_effect import note_without_effect
from memgate_worker.engines.phantom.ranks import doubt_ranks
from memgate_worker.engines.phantom.stages import mark_stages, without_the_next_step
from memgate_worker.engines.phantom.varying import describe_batches
from memgate_worker.engines.phantom.work_areas import doubt_work_areas, note_work_areas
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.runtimes.runtime import Runtime, why_no_kernels
from memgate_worker.sandbox.policy import STRICTEST, SandboxPolicy
from memgate_worker.standins.flash import FLASH_ATTN_DIR

#: memory of the device that the job runs on: ample, so that nothing the job does depends on it
TRACE_CAPACITY_BYTES = 1 << 43

#: traces that an engine keeps; each takes a few megabytes
_NUM_REMEMBERED = 16


class PhantomEngine:
    """A host process of one runtime, kept warm for many jobs. A context manager."""

    name = "phantom"

    def __init__(self, runtime: Runtime, policy: SandboxPolicy = STRICTEST) -> None:
        """Start the host; it imports torch when the first job comes."""
        self._runtime = runtime
        self._policy = policy
        self._made_by = identify_engine(runtime)
        #: by the digest of the run's key
        self._traced: OrderedDict[str, TracedJob] = OrderedDict()
        self._host = Host(runtime, policy=policy)
        #: for jobs that see our stand-in for flash-attn: transformers looks for it once
        self._flash_host: Host | None = None

    def __enter__(self) -> PhantomEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """End the host."""
        self._host.close()
        if self._flash_host is not None:
            self._flash_host.close()

    def stop_job(self) -> None:
        """End the job that runs, if one does."""
        self._host.stop_job()
        if self._flash_host is not None:
            self._flash_host.stop_job()

    def trace(
        self,
        spec: JobSpec,
        gpu: GpuSpec,
        *,
        limits: RunLimits = DEFAULT_LIMITS,
    ) -> TracedJob:
        """Run a job on the phantom, or reuse an earlier run.

        What a job asks for does not depend on the allocator's settings or on how much memory there
        is, so the same job for another setting or another GPU of the same kind is not run again.

        Raises:
            InputError: if the job cannot be run as it is written.
            NotModelledError: if it needs something that the phantom lacks.
            NoKernelsError: if the runtime's PyTorch was not built for the GPU.
            UnsupportedJobError: if our training loop fails with it.
            LimitExceededError: if it takes more time or memory of this machine than it may.
            SimulationError: if the simulator and the real allocator disagree.
            OperatorError: if the runtime does not start.
            PassingError: if the job's process was lost.
        """
        check_supported(spec)
        key = RunKey.of(spec, gpu, engine=self.name, made_by=self._made_by).digest()
        if key in self._traced:
            self._traced.move_to_end(key)
            return self._traced[key].again(spec.allocator)
        request = Request(
            work=JobRun(spec=spec.model_dump_json(by_alias=True)),
            environment=describe_device(gpu) | {"PYTORCH_CUDA_ALLOC_CONF": spec.allocator},
            limits=limits,
        )
        self._traced[key] = self._trace_ranks(spec, request, gpu)
        if len(self._traced) > _NUM_REMEMBERED:
            self._traced.popitem(last=False)
        return self._traced[key]

    def _trace_ranks(self, spec: JobSpec, request: Request, gpu: GpuSpec) -> TracedJob:
        """Run a job; of a distributed one, each rank that is unlike the others, one by one."""
        divided = spec.distributed
        if divided is None:
            return self._trace_batches(spec, request, gpu)
        waiting = find_ranks(divided)
        runs: dict[int, TracedJob] = {}
        while waiting:
            rank = waiting.pop(0)
            told = request.environment | describe_rank(divided, rank)
            run = self._trace_batches(spec, structs.replace(request, environment=told), gpu)
            runs[rank] = replace(run, rank=rank, world_size=divided.world_size)
            waiting += sorted(set(run.unlike_ranks) - {*runs, *waiting})
        first, *others = (runs[rank] for rank in sorted(runs))
        return replace(first, other_ranks=tuple(others))

    def _trace_batches(self, spec: JobSpec, request: Request, gpu: GpuSpec) -> TracedJob:
        traced = self._trace(request, gpu, self._host_for(spec))
        return self._describe_batches(spec, traced, request, gpu)

    def _host_for(self, spec: JobSpec) -> Host:
        if not spec.uses_flash_attention:
            return self._host
        if self._flash_host is None:
            self._flash_host = Host(self._runtime, FLASH_ATTN_DIR, policy=self._policy)
        return self._flash_host

    def _describe_batches(
        self, spec: JobSpec, traced: TracedJob, request: Request, gpu: GpuSpec
    ) -> TracedJob:
        """Add what varies from batch to batch, if anything does."""
        if not spec.input.varies:
            return traced

        def run_alone(alone: JobSpec) -> TracedJob:
            work = JobRun(spec=alone.model_dump_json(by_alias=True))
            left = replace(request.limits, seconds=request.limits.seconds - traced.seconds)
            other = structs.replace(request, work=work, limits=left)
            return self._run(_take_end(other, "all"), gpu, self._host_for(spec))[0]

        return describe_batches(spec, traced, run_alone)

    def _trace(self, request: Request, gpu: GpuSpec, host: Host) -> TracedJob:
        """Run a job; a second time at the other end if it has sizes that depend on data."""
        start = time.perf_counter()
        traced, num_data_sized = self._run(_take_end(request, "all"), gpu, host)
        if not num_data_sized:
            return traced

        def run_with_none() -> TracedJob:
            limits = request.limits.after(time.perf_counter() - start)
            other = _take_end(structs.replace(request, limits=limits), "none")
            return self._run(other, gpu, host)[0]

        joined = join_ends(traced, run_with_none)
        return replace(joined, seconds=time.perf_counter() - start)

    def _run(self, request: Request, gpu: GpuSpec, host: Host) -> tuple[TracedJob, int]:
        """Return what a run was, and how many results of it have sizes that depend on data."""
        start = time.perf_counter()
        try:
            answer = host.ask(request)
        except NoKernelsError:
            raise NoKernelsError(why_no_kernels(self._runtime, gpu)) from None
        assert isinstance(answer, RecordedRun)
        traced = to_traced(answer, self._runtime.name, time.perf_counter() - start)
        traced = replace(traced, marks=without_the_next_step(traced.marks))
        return traced, answer.num_data_sized_results


def _take_end(request: Request, end: str) -> Request:
    return structs.replace(request, environment=request.environment | {DATA_SIZES: end})


def to_traced(run: RecordedRun, runtime: str, seconds: float) -> TracedJob:
    """Check what was recorded on the phantom, and return the job's timeline.

    Raises:
        SimulationError: if the simulator and the real allocator disagree.
    """
    timeline = Timeline(
        events=run.events,
        labels=run.labels,
        dispensable=run.dispensable,
        phases=run.phases,
        private_streams=run.private_streams,
    )
    check_against_the_real_allocator(timeline, run.alloc_conf, run.memory_stats)
    return TracedJob(
        timeline=timeline,
        engine=PhantomEngine.name,
        runtime=runtime,
        versions=run.versions,
        alloc_conf=run.alloc_conf,
        num_parameters=run.num_parameters,
        notes=(
            *note_work_areas(run.work_areas),
            *note_flash_attention(run.notes),
            *note_without_effect(run.notes),
            *note_head(run.notes),
        ),
        doubts=(
            *doubt_work_areas(run.work_areas),
            *doubt_other_kernels(run.notes),
            *doubt_encoders(run.notes),
            *doubt_ranks(run.ranks, run.other_devices),
        ),
        marks=mark_stages(run),
        architectures=run.architectures,
        cudnn_benchmark=run.cudnn_benchmark,
        unlike_ranks=run.unlike_ranks,
        traffic=run.ranks.bytes_per_step if run.ranks is not None else {},
        communication=run.communication,
        seconds=seconds,
    )


def check_against_the_real_allocator(
    timeline: Timeline, alloc_conf: str, memory_stats: dict[str, int]
) -> None:
    """Replay on the device of the run and require the peaks that the real allocator had.

    Raises:
        SimulationError: if they differ, or the events contradict themselves: both are our bug.
    """
    try:
        run = replay(timeline, parse_alloc_conf(alloc_conf), TRACE_CAPACITY_BYTES)
    except TimelineError as error:
        raise SimulationError(f"self-check failed: {error.message}") from error
    ours = run.stats.memory_stats()
    for name, theirs in memory_stats.items():
        if ours[name] != theirs:
            raise SimulationError(
                f"self-check failed: {name} was {theirs} in the real allocator,"
                f" {ours[name]} in the simulator"
            )


def describe_device(gpu: GpuSpec) -> dict[str, str]:
    """Describe the GPU to the stand-ins; the fields are those of ``native/device.h``."""
    major, minor = gpu.compute_capability
    return {
        "MEMGATE_PHANTOM_NAME": gpu.product,
        "MEMGATE_PHANTOM_TOTAL_BYTES": str(TRACE_CAPACITY_BYTES),
        "MEMGATE_PHANTOM_SHOWN_BYTES": str(gpu.memory_bytes),
        "MEMGATE_PHANTOM_COMPUTE_MAJOR": str(major),
        "MEMGATE_PHANTOM_COMPUTE_MINOR": str(minor),
        "MEMGATE_PHANTOM_MULTIPROCESSORS": str(gpu.multiprocessors),
    }
