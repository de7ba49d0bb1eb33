"""JobSpec -> Timeline: the job runs on the CPU under the profiler, at small batch sizes.

What it leaves behind is affine in the batch size, so two small runs predict any other, and a third
checks that they do. Runs are remembered: the same job at another batch size or for another GPU
costs nothing.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memgate.blocks import pair_blocks
from memgate.errors import (
    ExtrapolationError,
    HostMemoryError,
    NoKernelsError,
    UnsupportedJobError,
)
from memgate.extrapolation import compare, extrapolate
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec, Trainer, check_supported
from memgate.links import LinkedSet, link_blocks
from memgate.orchestration import orchestrate
from memgate.plan import DeviceTraits
from memgate.residents import Residents, find_residents
from memgate.run_key import RunKey
from memgate.trace import read_trace
from memgate_worker.engines.host_client import Host
from memgate_worker.engines.identity import identify_engine
from memgate_worker.engines.messages import (
    Profiled,
    ProfileRun,
    ProfileScriptRun,
    Request,
    ScriptRun,
)
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.runtimes.runtime import Runtime, why_no_kernels
from memgate_worker.sandbox.policy import STRICTEST, SandboxPolicy

#: the batch sizes that are run, and the one in between that checks them
_BATCHES = (3, 5)
_CHECKED_BATCH = 4

#: peaks may grow until the fourth iteration; more would only repeat it
_MAX_ITERATIONS = 4

_NUM_REMEMBERED = 16


def _check_known(spec: JobSpec) -> None:
    """Refuse what runs otherwise on a CPU.

    Raises:
        UnsupportedJobError: naming the fields.
    """
    given = {
        "distributed": spec.distributed is not None,
        "lora": spec.lora is not None,
        "quantization": spec.quantization is not None,
        "attention": spec.uses_flash_attention,
        "compile": spec.compile is not False,
        "liger": spec.liger,
        "offload": spec.offload.is_given,
        "input": spec.input.varies,
        "optimizer": "." in spec.optimizer.name or spec.optimizer.companion is not None,
        "trainer": spec.trainer is not Trainer.PLAIN,
        "eval": spec.eval is not None,
        "save": spec.save,
        "ema": spec.ema,
    }
    fields = [field for field, is_given in given.items() if is_given]
    if fields:
        raise UnsupportedJobError(
            f"{' and '.join(fields)}: the profile engine runs jobs on the CPU, where this is not"
            " done as on a GPU; use the phantom engine (--engine phantom)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A job at one batch size."""

    linked: LinkedSet
    residents: Residents
    told: Profiled


class ProfileEngine:
    """A host process of one runtime, kept warm for many jobs. A context manager."""

    name = "profile"

    def __init__(self, runtime: Runtime, policy: SandboxPolicy = STRICTEST) -> None:
        """Start the host; it imports torch when the first job comes."""
        self._runtime = runtime
        self._made_by = identify_engine(runtime)
        self._host = Host(runtime, policy=policy)
        #: for scripts of the user's own, which see all that the user does
        self._script_host: Host | None = None
        #: by the digest of the runs' key
        self._pairs: OrderedDict[str, tuple[Profile, Profile]] = OrderedDict()
        #: run with little memory, since they took too much of this machine's before
        self._large_models: set[str] = set()

    def __enter__(self) -> ProfileEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """End the hosts."""
        self._host.close()
        if self._script_host is not None:
            self._script_host.close()

    def stop_job(self) -> None:
        """End the job that runs, if one does."""
        self._host.stop_job()

    def trace(
        self,
        spec: JobSpec,
        gpu: GpuSpec,
        *,
        limits: RunLimits = DEFAULT_LIMITS,
        without: Sequence[str] = (),
    ) -> TracedJob:
        """Run a job at small batch sizes and return its timeline at its own.

        ``without`` names rules of the orchestration that are left out.

        Raises:
            InputError: if the job cannot be run as it is written.
            NoKernelsError: if the runtime's PyTorch was not built for the GPU.
            ExtrapolationError: if the small runs do not predict the large one.
            UnsupportedJobError: if our training loop fails with it.
            LimitExceededError: if it takes more time or memory of this machine than it may.
            OperatorError: if the runtime does not start.
            PassingError: if the job's process was lost.
        """
        check_supported(spec)
        _check_known(spec)
        start = time.perf_counter()
        first, second = self._small_runs(spec, limits)
        if not gpu.has_kernels(first.told.architectures):
            raise NoKernelsError(why_no_kernels(self._runtime, gpu))
        linked = extrapolate(first.linked, second.linked, _BATCHES, spec.batch_size)
        major, minor, *_ = first.told.versions["torch"].split(".")
        device = DeviceTraits(
            compute_capability=gpu.compute_capability,
            multiprocessors=gpu.multiprocessors,
            torch_version=(int(major), int(minor)),
        )
        return TracedJob(
            timeline=orchestrate(linked, first.residents, device, without=without),
            engine=self.name,
            runtime=self._runtime.name,
            versions=first.told.versions,
            alloc_conf=spec.allocator,
            num_parameters=first.told.num_parameters,
            notes=(),
            architectures=first.told.architectures,
            seconds=time.perf_counter() - start,
        )

    def profile_script(
        self,
        path: Path,
        arguments: Sequence[str],
        trace_path: Path,
        *,
        num_steps: int,
        limits: RunLimits = DEFAULT_LIMITS,
        on_step: Callable[[int], None] = lambda _: None,
    ) -> Profiled:
        """Run a user's own script on the CPU under the profiler, and save the trace.

        It is started in this process's working directory and sees its environment; ``on_step``
        is told how many optimizer steps there were. Raises what ``trace`` raises, and
        ``JobFailedError`` if the script fails.
        """
        script = ScriptRun(
            path=str(path.resolve()),
            arguments=tuple(arguments),
            directory=str(Path.cwd()),
            num_steps=num_steps,
        )
        if self._script_host is None:
            self._script_host = Host(self._runtime, policy=None)
        told = self._script_host.ask(
            Request(
                work=ProfileScriptRun(script=script, trace_path=str(trace_path.resolve())),
                environment=dict(os.environ),
                limits=limits,
            ),
            on_step,
        )
        assert isinstance(told, Profiled)
        return told

    def _small_runs(self, spec: JobSpec, limits: RunLimits) -> tuple[Profile, Profile]:
        # the same for every batch size and every GPU
        any_batch = spec.model_copy(update={"batch_size": 1})
        key = RunKey.of(any_batch, None, engine=self.name, made_by=self._made_by).digest()
        if key not in self._pairs:
            first, second, between = (
                self.profile(spec, batch, limits) for batch in (*_BATCHES, _CHECKED_BATCH)
            )
            expected = extrapolate(first.linked, second.linked, _BATCHES, _CHECKED_BATCH)
            if different := compare(expected, between.linked).num_differences:
                raise ExtrapolationError(
                    f"{different} calls or blocks at batch size {_CHECKED_BATCH} are not what"
                    f" batch sizes {_BATCHES[0]} and {_BATCHES[1]} predict; use the phantom engine"
                )
            self._pairs[key] = (first, second)
            if len(self._pairs) > _NUM_REMEMBERED:
                self._pairs.popitem(last=False)
        self._pairs.move_to_end(key)
        return self._pairs[key]

    def profile(self, spec: JobSpec, batch: int, limits: RunLimits = DEFAULT_LIMITS) -> Profile:
        """Run a job on the CPU at one batch size. Raises what ``trace`` raises."""
        model = spec.model.model_dump_json()
        if model not in self._large_models:
            try:
                return self._run(spec, batch, limits, frugal=False)
            except HostMemoryError:
                self._large_models.add(model)
        return self._run(spec, batch, limits, frugal=True)

    def _run(self, spec: JobSpec, batch: int, limits: RunLimits, *, frugal: bool) -> Profile:
        small = spec.model_copy(
            update={"batch_size": batch, "iterations": min(spec.iterations, _MAX_ITERATIONS)}
        )
        assert self._host.traces is not None
        path = self._host.traces / "trace.json"
        work = ProfileRun(
            spec=small.model_dump_json(by_alias=True), trace_path=str(path), frugal=frugal
        )
        try:
            told = self._host.ask(Request(work=work, environment={}, limits=limits))
            assert isinstance(told, Profiled)
            with path.open("rb") as stream:
                trace = read_trace(stream)
        finally:
            path.unlink(missing_ok=True)
        linked = link_blocks(pair_blocks(trace), trace)
        return Profile(linked=linked, residents=find_residents(trace, linked), told=told)
