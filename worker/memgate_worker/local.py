"""Answers without a queue: a job, a script, a file of either kind -> what memgate says about it.

The worker's one door for the command line and for ``memgate.estimate``: nothing outside this
package imports its engines. No rq, no Redis, no torch: engines run jobs in separate processes
(``engines.warm`` keeps those for the next question).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, get_args

from memgate.errors import InputError, OperatorError
from memgate.gpu_plan import GpuCounts, GpuPlan, find_plan
from memgate.gpus import GpuSpec, GpuTarget
from memgate.jobspec import JobSpec, check_supported
from memgate.max_batch import MaxBatch
from memgate.mistakes import RuleError
from memgate.report import Estimate, Fit, FitEntry
from memgate.timeline import Timeline
from memgate.timeline_file.recorded import RecordedTimeline, RecordingEngine
from memgate_worker.dividing import DividedRun
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.engines.registry import check_engine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.engines.warm import close_engines, use_engine
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.hub import MemoryCache, ModelHub
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.own_gpus import load_own_gpus
from memgate_worker.recorder.batches import PLACE, find_largest_batch_of
from memgate_worker.recorder.everywhere import fit_command_everywhere
from memgate_worker.recorder.listening import Heard
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.recorder.reading import CommandRun
from memgate_worker.recordings import record_run
from memgate_worker.runtimes.locks import using
from memgate_worker.runtimes.runtime import find_runtime, named_runtime, read_runtimes
from memgate_worker.sandbox.policy import STRICTEST, ChosenLevel, choose
from memgate_worker.timings import time_estimate
from memgate_worker.uploads.client import fit_upload, judge_upload
from memgate_worker.uploads.question import UploadFitQuestion, UploadQuestion
from memgate_worker.verdicts import answer_run, fit_everywhere, largest_batch

__all__ = [
    "DEFAULT_LIMITS",
    "PLACE",
    "CommandQuestion",
    "Heard",
    "LocalAnswer",
    "RunLimits",
    "Script",
    "Watch",
    "answer_run",
    "check_engine",
    "close_engines",
    "estimate_command",
    "estimate_script",
    "estimate_spec",
    "estimate_upload",
    "find_largest_batch",
    "find_largest_batch_of",
    "find_sandbox",
    "fit_command_everywhere",
    "fit_spec",
    "fit_timeline",
    "load_own_gpus",
    "plan_spec",
    "profile_script",
    "trace_spec",
]


#: what hubs have said; it lives as long as this process
_CONFIGS = MemoryCache()

#: of a script that is profiled, unless the caller says how many
_PROFILED_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAnswer:
    """An estimate, and what its pictures are drawn from."""

    estimate: Estimate
    #: the rank that decided
    traced: TracedJob
    #: with all ranks that were run; None if a file was asked about
    job: TracedJob | None = None
    #: what else is known if a command was run
    run: CommandRun | None = None

    @property
    def timeline(self) -> Timeline:
        """What the job did."""
        return self.traced.timeline

    @property
    def alloc_conf(self) -> str:
        """The allocator's settings that it was made with: a script may have set them itself."""
        return self.traced.alloc_conf

    def record(self, gpu: GpuSpec, command: Sequence[str] = ()) -> RecordedTimeline:
        """Return what is kept of the run in a timeline file; ``gpu`` is what it was made for.

        Raises:
            InputError: if an estimator of others was asked: it has no timeline worth keeping.
        """
        if self.traced.engine not in get_args(RecordingEngine):
            raise InputError(
                f"engine {self.traced.engine}: it says how much memory a job takes and not when, so"
                " there is no timeline to keep; use --engine phantom"
            )
        traced = (self.job or self.traced).led_by(self.traced.rank)
        if self.run is not None:
            return record_run(
                traced,
                gpu,
                command=command,
                cudnn=self.run.cudnn,
                batches=self.run.batches,
            )
        runtime = read_runtimes()[self.traced.runtime]
        cudnn = runtime.cudnn if runtime.has_cudnn else None
        return record_run(traced, gpu, command=command, cudnn=cudnn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A user's own training script, and how it is started."""

    path: Path
    arguments: Sequence[str] = ()
    #: optimizer steps after which it is stopped; None: as soon as it shows nothing new
    num_steps: int | None = None
    #: run it without ``torch.compile``
    ignores_compile: bool = False

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise InputError(f"{self.path}: there is no such script")


def estimate_spec(
    spec: JobSpec,
    target: GpuTarget,
    *,
    engine: str = "auto",
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
) -> LocalAnswer:
    """Run the loop of a job spec, and say whether it fits; ``runtime`` overrides the spec's.

    Raises:
        MemgateError: if there is no answer; its ``fault`` says whose fault that is.
    """
    divided = DividedRun.of(spec, target)

    def trace() -> TracedJob:
        run = trace_spec(divided.job, target.gpu, engine=engine, runtime=runtime, limits=limits)
        return divided.mark(run)

    return _answer(trace, target)


def estimate_script(
    script: Script,
    target: GpuTarget,
    *,
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
    on_progress: Callable[[Heard], None] = lambda _: None,
) -> LocalAnswer:
    """Run a user's own script in a runtime of ours, on the phantom, and say whether it fits.

    ``on_progress`` is told of its steps. Raises what ``estimate_spec`` raises.
    """
    found = find_runtime(runtime)
    question = CommandQuestion(
        command=(str(found.python), str(script.path), *script.arguments),
        directory=Path.cwd(),
        environment=os.environ,
        gpu=target.gpu,
        watch=Watch(steps=script.num_steps),
        limits=limits,
        ignores_compile=script.ignores_compile,
        runtime=found.name,
    )
    with using(found):
        return estimate_command(question, target, on_progress=on_progress)


def estimate_command(
    question: CommandQuestion,
    target: GpuTarget,
    *,
    output: BinaryIO | None = None,
    on_progress: Callable[[Heard], None] = lambda _: None,
) -> LocalAnswer:
    """Run a command in its own environment, on the phantom, and say whether its job fits.

    ``output`` is given what it prints; ``on_progress`` is told of its steps. Raises what
    ``estimate_spec`` raises.
    """

    runs: list[CommandRun] = []

    def trace() -> TracedJob:
        runs.append(record_command(question, output=output, on_progress=on_progress))
        return runs[0].traced

    return replace(_answer(trace, target), run=runs[0])


def estimate_upload(
    stream: BinaryIO,
    target: GpuTarget,
    *,
    alloc_conf: str = "",
    without: Iterable[str] = (),
    device: int | None = None,
    inference: bool = False,
) -> LocalAnswer:
    """Say whether the job of a trace, a memory snapshot or a timeline file fits; nothing is run.

    It is read in a process with limits, as a server reads it: people pass such files on.

    Args:
        stream: the trace, the snapshot or the timeline file.
        target: the GPU.
        alloc_conf: a ``PYTORCH_ALLOC_CONF`` string; takes the place of the file's own.
        without: names of rules of the orchestration that are left out, for a trace.
        device: one of those in a snapshot.
        inference: the question about a trace is about inference, and not about training.

    Raises:
        InputError: if it is none of them, lacks something, or takes too much time or memory.
        UnsupportedTraceError: if it is of a kind that is not analysed.
    """
    question = UploadQuestion(
        target=target,
        alloc_conf=alloc_conf,
        without=tuple(without),
        device=device,
        inference=inference,
        wants_run=True,
    )
    judged = judge_upload(stream, question)
    assert judged.run is not None
    return LocalAnswer(estimate=judged.estimate, traced=judged.run)


def fit_timeline(stream: BinaryIO, *, alloc_conf: str = "") -> Fit:
    """Say for every GPU of the catalogue whether the job of a timeline file fits; nothing is run.

    It is read in a process with limits, too. ``alloc_conf`` takes the place of its own settings.

    Raises:
        InputError: if it is not a timeline file, or breaks a rule of the format.
    """
    return fit_upload(stream, UploadFitQuestion(alloc_conf=alloc_conf))


def fit_spec(
    spec: JobSpec,
    *,
    engine: str = "auto",
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
    on_gpus: Callable[[list[FitEntry]], None] = lambda _: None,
) -> Fit:
    """Say for every GPU of the catalogue whether a job fits; ``on_gpus`` is told of each result.

    Raises what ``estimate_spec`` raises.
    """
    trace = partial(trace_spec, engine=engine, runtime=runtime, limits=limits)
    return fit_everywhere(trace, spec, on_gpus, engine=engine)


def find_largest_batch(
    spec: JobSpec,
    target: GpuTarget,
    *,
    engine: str = "auto",
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
    on_size: Callable[[int, Estimate], None] = lambda *_: None,
) -> MaxBatch:
    """Find the largest batch of a job that is admitted; ``on_size`` is told of each size tried.

    Raises what ``estimate_spec`` raises.
    """
    trace = partial(trace_spec, engine=engine, runtime=runtime, limits=limits)
    found = largest_batch(trace, spec, target, on_said=on_size)
    assert found is not None, "a search that nothing ends finds something"
    return found


def plan_spec(
    spec: JobSpec,
    target: GpuTarget,
    counts: GpuCounts,
    *,
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
    on_said: Callable[[JobSpec, Estimate], None] = lambda *_: None,
) -> GpuPlan:
    """Find the fewest GPUs for a job and the cheapest way to divide it; each line is a run.

    ``on_said`` is told of each job that was run. Raises what ``estimate_spec`` raises.
    """

    def ask(job: JobSpec) -> Estimate:
        said = estimate_spec(job, target, engine="phantom", runtime=runtime, limits=limits).estimate
        on_said(job, said)
        return said

    return find_plan(ask, spec, target.gpu.name, counts)


def find_sandbox() -> ChosenLevel:
    """Return the level at which jobs of the default runtime run on this machine, and why."""
    runtime = named_runtime(None)
    seen = (runtime.venv, runtime.interpreter_home) if runtime.is_installed else ()
    return choose(STRICTEST, tuple(map(str, seen)))


def profile_script(
    script: Script,
    output: Path,
    *,
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
    on_step: Callable[[int], None] = lambda _: None,
) -> int:
    """Run a user's own script on the CPU under the profiler, and save the trace.

    Returns how many optimizer steps are in it. Raises what ``estimate_spec`` raises.
    """
    with use_engine("profile", find_runtime(runtime)) as engine:
        assert isinstance(engine, ProfileEngine)
        return engine.profile_script(
            script.path,
            script.arguments,
            output,
            num_steps=script.num_steps or _PROFILED_STEPS,
            on_step=on_step,
            limits=limits,
        ).num_steps


def trace_spec(
    spec: JobSpec,
    gpu: GpuSpec,
    *,
    engine: str = "auto",
    runtime: str | None = None,
    limits: RunLimits = DEFAULT_LIMITS,
) -> TracedJob:
    """Run the loop of a job spec for a GPU, and return its timeline.

    Raises what ``estimate_spec`` raises; a wrong engine is reported before a missing runtime.
    """
    check_engine(engine)
    check_supported(spec)
    found = _find_hub().complete(spec)
    with use_engine(engine, find_runtime(runtime or spec.runtime)) as started:
        return found.mark(started.trace(found.job, gpu, limits=limits))


def _find_hub() -> ModelHub:
    """Return the hub that this machine's user allows to ask, if any."""
    try:
        return ModelHub(os.environ.get("MEMGATE_HUB", ""), _CONFIGS)
    except RuleError as error:
        raise OperatorError(f"MEMGATE_HUB: {error}") from None


def _answer(trace: Callable[[], TracedJob], target: GpuTarget) -> LocalAnswer:
    jobs: list[TracedJob] = []

    def trace_and_keep() -> TracedJob:
        jobs.append(trace())
        return jobs[0]

    timed = time_estimate(trace_and_keep, target)
    return LocalAnswer(estimate=timed.estimate, traced=timed.traced, job=jobs[0])
