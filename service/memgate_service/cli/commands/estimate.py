"""``memgate estimate``: one job, in this process, or (``--server``) by a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.contract import EngineName
from memgate.errors import InputError, NotModelledError
from memgate.gpus import GpuTarget, parse_gpu
from memgate.jobspec import JobSpec
from memgate.report import Estimate
from memgate.units import GIB
from memgate_service.cli.answer_files import AnswerFiles
from memgate_service.cli.commands.options import (
    AllocatorSettings,
    ApiKey,
    Arguments,
    AsJson,
    CommandSteps,
    CurveFile,
    EngineChoice,
    Gpu,
    HostMemory,
    IgnoreCompile,
    Picture,
    RuntimeName,
    Server,
    TimelineFile,
    Timeout,
)
from memgate_service.cli.exit_status import EXIT_STATUS
from memgate_service.cli.printing import show_estimate
from memgate_service.cli.progress import show_stages
from memgate_service.cli.reading import is_timeline, open_upload, read_gpu, read_spec
from memgate_service.cli.remote import connect, engine_name, refuse, with_runtime
from memgate_worker.local import (
    DEFAULT_LIMITS,
    LocalAnswer,
    RunLimits,
    Script,
    estimate_script,
    estimate_spec,
    estimate_upload,
)

if TYPE_CHECKING:
    from memgate import Client


def estimate_command(
    job: Annotated[
        Path,
        typer.Argument(
            metavar="JOB",
            help="Job spec, JSON or YAML, or timeline file ('-': either from stdin), or a training"
            " script (.py).",
        ),
    ],
    arguments: Arguments = None,
    gpu: Gpu = ...,  # type: ignore[assignment]  # typer's word for "must be given"
    allocator: AllocatorSettings = "",
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
    steps: CommandSteps = None,
    ignore_compile: IgnoreCompile = False,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    host_memory: HostMemory = DEFAULT_LIMITS.memory_bytes / GIB,
    plot: Picture = None,
    curve: CurveFile = None,
    output: TimelineFile = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Will this job fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The job runs on a GPU that is not there: PyTorch's own CUDA code, no kernel, no weights. A
    script of yours runs as it is, with the libraries of a runtime, until it has trained and
    evaluated; for its own libraries, see: memgate run. A timeline file (-o) has such a run in it:
    it is replayed, for any GPU, and nothing is run.

    Example: memgate estimate job.json --gpu rtx-3060

    Example: memgate estimate job.memgate --gpu rtx-3060 --allocator expandable_segments:True

    Example: memgate estimate train.py --gpu a100-80 -- --batch-size 64
    """
    named = engine_name(engine)
    if server:
        given = {"plot": plot is not None, "curve": curve is not None, "output": output is not None}
        refuse(server, **{"a script": _is_script(job)}, **given)
    script = None
    if _is_script(job):
        script = Script(
            path=job, arguments=arguments or [], num_steps=steps, ignores_compile=ignore_compile
        )
    asked = _Asked.about(job, script, allocator, named, runtime)
    asked.check(arguments or [], output, ignores_compile=ignore_compile)
    if server:
        with connect(server, api_key, silent=as_json) as client:
            answer = _ask_server(client, asked, read_gpu(gpu), timeout)
    else:
        target = parse_gpu(read_gpu(gpu))
        files = AnswerFiles.prepare(plot=plot, curve=curve, output=output)
        limits = RunLimits(seconds=timeout, memory_bytes=int(host_memory * GIB))
        found = _ask_here(asked, target, limits, silent=as_json)
        files.write(found, target, title=job.name, command=asked.command)
        answer = found.estimate
    show_estimate(answer, as_json=as_json, server=server or "")
    raise typer.Exit(EXIT_STATUS[answer.decision])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked about, apart from the GPU."""

    job: Path
    allocator: str
    engine: EngineName
    runtime: str | None
    #: None if it is not one
    script: Script | None
    #: a timeline file
    is_recorded: bool

    @classmethod
    def about(
        cls,
        job: Path,
        script: Script | None,
        allocator: str,
        engine: EngineName,
        runtime: str | None,
    ) -> _Asked:
        """Tell what kind of file a job is."""
        return cls(
            job=job,
            allocator=allocator,
            engine=engine,
            runtime=runtime,
            script=script,
            is_recorded=script is None and is_timeline(job),
        )

    @property
    def command(self) -> tuple[str, ...]:
        """How the job is started without memgate; empty for a job spec."""
        script = self.script
        return () if script is None else ("python", str(script.path), *script.arguments)

    def check(self, arguments: list[str], output: Path | None, *, ignores_compile: bool) -> None:
        """Refuse what does not go with what is asked about."""
        if self.script is None and ignores_compile:
            raise InputError(f"--ignore-compile is for scripts, and {self.job} is not one")
        if self.script is None and arguments:
            raise InputError(
                f"{arguments[0]!r}: only a script takes arguments, and {self.job} is not one"
            )
        if self.script is not None and self.allocator:
            raise InputError(
                "--allocator is for job specs and timeline files; a script is asked itself: set"
                " PYTORCH_ALLOC_CONF for it"
            )
        if not self.is_recorded:
            return
        given = {"--runtime": self.runtime, "-o": output, "--engine": self.engine != "auto"}
        for option, is_given in given.items():
            if is_given:
                raise InputError(
                    f"{option} is for a job that is run, and {self.job} is a timeline file: leave"
                    " it out"
                )

    def read_spec(self) -> JobSpec:
        """Read the job spec, with the allocator's settings that are asked about."""
        spec = read_spec(self.job)
        return spec.model_copy(update={"allocator": self.allocator}) if self.allocator else spec


def _ask_server(client: Client, asked: _Asked, gpu: Any, timeout: float) -> Estimate:
    if asked.is_recorded:
        with open_upload(asked.job) as stream:
            return client.estimate(stream.read(), gpu, allocator=asked.allocator, wait=timeout)
    spec = with_runtime(asked.read_spec(), asked.runtime)
    return client.estimate(spec, gpu, engine=asked.engine, wait=timeout)


def _ask_here(asked: _Asked, target: GpuTarget, limits: RunLimits, *, silent: bool) -> LocalAnswer:
    if asked.allocator:
        parse_alloc_conf(asked.allocator)
    if asked.script is not None:
        return _run_script(asked.script, target, asked.engine, asked.runtime, limits, silent=silent)
    if asked.is_recorded:
        with open_upload(asked.job) as stream:
            return estimate_upload(stream, target, alloc_conf=asked.allocator)
    return estimate_spec(
        asked.read_spec(), target, engine=asked.engine, runtime=asked.runtime, limits=limits
    )


def _is_script(job: Path) -> bool:
    return job.suffix == ".py"


def _run_script(
    script: Script,
    target: GpuTarget,
    engine: EngineName,
    runtime: str | None,
    limits: RunLimits,
    *,
    silent: bool,
) -> LocalAnswer:
    """Run a script on the phantom, and name the alternative if that is not possible."""
    instead = (
        f"profile the script: memgate profile {script.path} -o TRACE,"
        f" then: memgate analyze TRACE --gpu {target.gpu.name}"
    )
    if engine == "profile":
        raise InputError(f"--engine profile runs job specs; {instead}")
    try:
        with show_stages(script.path.name, silent=silent) as on_progress:
            return estimate_script(
                script, target, runtime=runtime, limits=limits, on_progress=on_progress
            )
    except NotModelledError as error:
        raise NotModelledError(f"{error.message}; {instead}") from None
