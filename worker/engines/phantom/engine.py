"""JobSpec -> Timeline: the job runs on a GPU that is not there.

A host process of the job's runtime runs it (``host``); this side asks, reads what it says, and
checks the simulator against it: a replay on the device of the run must show the very peaks that the
real allocator had. Other capacities, GPUs and settings need no other run, only other replays.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass

import msgspec

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import EngineError, InputError, SimulationError
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec
from memgate.timeline import Timeline
from worker.engines.phantom.answer import Answer, BadJob, Crash, Request
from worker.runtime import Runtime

#: memory of the device that the job runs on: ample, so that nothing the job does depends on it
TRACE_CAPACITY_BYTES = 1 << 43


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """A job's timeline, and how it was obtained."""

    timeline: Timeline
    runtime: str
    versions: dict[str, str]
    num_parameters: int
    #: results whose size depends on data: their memory, and what follows from it, may be wrong
    num_data_sized_results: int
    #: from asking to being told
    seconds: float


class PhantomEngine:
    """A host process of one runtime, kept warm for many jobs. A context manager."""

    def __init__(self, runtime: Runtime) -> None:
        """Start the host; it imports torch when the first job comes."""
        self._runtime = runtime
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed when the engine is
        self._host = subprocess.Popen(
            [runtime.python, "-m", "worker.engines.phantom.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_host_environment(runtime),
        )

    def __enter__(self) -> PhantomEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """End the host."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.close()
        self._host.stdout.close()
        self._host.wait()
        self._said.close()

    def trace(self, spec: JobSpec, gpu: GpuSpec, *, timeout_seconds: int = 600) -> TracedJob:
        """Run a job on the phantom.

        Raises:
            InputError: if the job cannot be run as it is written, or needs what the phantom lacks.
            SimulationError: if the simulator and the real allocator disagree.
            EngineError: if the job fails for another reason.
        """
        start = time.perf_counter()
        request = Request(
            job=spec.model_dump_json(by_alias=True),
            environment=_job_environment(spec, gpu),
            timeout_seconds=timeout_seconds,
        )
        answer = self._ask(request)
        timeline = Timeline(events=answer.events, labels=answer.labels)
        check_against_the_real_allocator(timeline, spec.allocator, answer.memory_stats)
        return TracedJob(
            timeline=timeline,
            runtime=self._runtime.name,
            versions=answer.versions,
            num_parameters=answer.num_parameters,
            num_data_sized_results=answer.num_data_sized_results,
            seconds=time.perf_counter() - start,
        )

    def _why_the_host_died(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        name = self._runtime.name
        return (
            f"the host of runtime {name} died: {lines[-1] if lines else 'it said nothing'};"
            f" build it again with: make runtime RUNTIME={name}"
        )

    def _ask(self, request: Request) -> Answer:
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        try:
            self._host.stdin.write(msgspec.json.encode(request) + b"\n")
            self._host.stdin.flush()
            line = self._host.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise EngineError(self._why_the_host_died())
        answer = msgspec.json.decode(line, type=Answer | BadJob | Crash)
        if isinstance(answer, BadJob):
            raise InputError(answer.message)
        if isinstance(answer, Crash):
            if answer.unmodelled:
                raise InputError(
                    "the phantom engine cannot know this job's memory: it calls"
                    f" {', '.join(answer.unmodelled)}, of NVIDIA's own libraries"
                )
            raise EngineError(f"the job failed on the phantom: {answer.message}")
        return answer


def check_against_the_real_allocator(
    timeline: Timeline, alloc_conf: str, memory_stats: dict[str, int]
) -> None:
    """Replay on the device of the run and require the peaks that the real allocator had."""
    ours = replay(timeline, parse_alloc_conf(alloc_conf), TRACE_CAPACITY_BYTES).stats.memory_stats()
    for name, theirs in memory_stats.items():
        if ours[name] != theirs:
            raise SimulationError(
                f"self-check failed: {name} was {theirs} in the real allocator,"
                f" {ours[name]} in the simulator"
            )


def _host_environment(runtime: Runtime) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "MEMGATE_PHANTOM_LIBRARIES": str(runtime.stubs),
        "LD_LIBRARY_PATH": str(runtime.stubs),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _job_environment(spec: JobSpec, gpu: GpuSpec) -> dict[str, str]:
    major, minor = gpu.compute_capability
    return {
        "PYTORCH_CUDA_ALLOC_CONF": spec.allocator,
        "MEMGATE_PHANTOM_NAME": gpu.product,
        "MEMGATE_PHANTOM_TOTAL_BYTES": str(TRACE_CAPACITY_BYTES),
        "MEMGATE_PHANTOM_COMPUTE_MAJOR": str(major),
        "MEMGATE_PHANTOM_COMPUTE_MINOR": str(minor),
        "MEMGATE_PHANTOM_MULTIPROCESSORS": str(gpu.multiprocessors),
    }
