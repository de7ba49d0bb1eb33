"""``memgate estimate``: one job, in this process, or (``--server``) by a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.contract import EngineName
from memgate.errors import InputError, NotModelledError
from memgate.gpus import GpuTarget, parse_gpu
from memgate.report import Estimate
from memgate.units import GIB
from memgate_service.cli.commands.options import (
    ApiKey,
    Arguments,
    AsJson,
    CurveFile,
    EngineChoice,
    Gpu,
    HostMemory,
    Picture,
    RuntimeName,
    Server,
    Timeout,
)
from memgate_service.cli.curves import prepare_curve, write_timeline_curve
from memgate_service.cli.exit_status import EXIT_STATUS
from memgate_service.cli.plots import plot_timeline, prepare_picture
from memgate_service.cli.printing import show_estimate
from memgate_service.cli.progress import show_stages
from memgate_service.cli.reading import read_gpu, read_spec
from memgate_service.cli.remote import connect, engine_name, refuse, with_runtime
from memgate_worker.local import (
    DEFAULT_LIMITS,
    LocalAnswer,
    RunLimits,
    Script,
    estimate_script,
    estimate_spec,
)


def estimate_command(
    job: Annotated[
        Path,
        typer.Argument(
            metavar="JOB",
            help="Job spec, JSON or YAML ('-': from stdin), or a training script (.py).",
        ),
    ],
    arguments: Arguments = None,
    gpu: Gpu = ...,  # type: ignore[assignment]  # typer's word for "must be given"
    engine: EngineChoice = "auto",
    runtime: RuntimeName = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Stop a script after so many training steps, whatever follows."),
    ] = None,
    timeout: Timeout = DEFAULT_LIMITS.seconds,
    host_memory: HostMemory = DEFAULT_LIMITS.memory_bytes / GIB,
    plot: Picture = None,
    curve: CurveFile = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Will this job fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The job runs on a GPU that is not there: PyTorch's own CUDA code, no kernel, no weights. A
    script of yours runs as it is, with the libraries of a runtime, until it has trained and
    evaluated; for its own libraries, see: memgate run.

    Example: memgate estimate job.json --gpu rtx-3060

    Example: memgate estimate train.py --gpu a100-80 -- --batch-size 64
    """
    named = engine_name(engine)
    if server:
        given = {"plot": plot is not None, "curve": curve is not None}
        refuse(server, **{"a script": _is_script(job)}, **given)
        spec = with_runtime(read_spec(job), runtime)
        with connect(server, api_key, silent=as_json) as client:
            answer: Estimate = client.estimate(spec, read_gpu(gpu), engine=named, wait=timeout)
    else:
        target = parse_gpu(read_gpu(gpu))
        picture = prepare_picture(plot) if plot is not None else None
        data = prepare_curve(curve) if curve is not None else None
        limits = RunLimits(seconds=timeout, memory_bytes=int(host_memory * GIB))
        if _is_script(job):
            script = Script(path=job, arguments=arguments or [], num_steps=steps)
            found = _run_script(script, target, named, runtime, limits, silent=as_json)
        else:
            _refuse_arguments(job, arguments or [])
            spec = read_spec(job)
            found = estimate_spec(spec, target, engine=named, runtime=runtime, limits=limits)
        config = parse_alloc_conf(found.alloc_conf)
        if picture is not None:
            plot_timeline(found.timeline, config, target, title=job.name, path=picture)
        if data is not None:
            write_timeline_curve(found.timeline, config, target, path=data)
        answer = found.estimate
    show_estimate(answer, as_json=as_json, server=server or "")
    raise typer.Exit(EXIT_STATUS[answer.decision])


def _is_script(job: Path) -> bool:
    return job.suffix == ".py"


def _refuse_arguments(job: Path, arguments: list[str]) -> None:
    if arguments:
        raise InputError(f"{arguments[0]!r}: only a script takes arguments, and {job} is not one")


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
