"""``memgate estimate``: one job, in this process, or (``--server``) by a server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import InputError, NotModelledError
from memgate.gpus import GpuTarget, parse_gpu
from memgate.jobspec import JobSpec, check_supported
from memgate.report import Estimate
from memgate.spec_text import read_job_text
from memgate.units import GIB
from memgate_service.cli.commands.options import (
    ApiKey,
    Arguments,
    AsJson,
    EngineChoice,
    Gpu,
    HostMemory,
    Picture,
    RuntimeName,
    Server,
    Timeout,
)
from memgate_service.cli.commands.remote import connect, engine_name, refuse, with_runtime
from memgate_service.cli.plots import plot_timeline, prepare_picture
from memgate_service.cli.printing import print_estimate
from memgate_worker.engines.client import DEFAULT_HOST_MEMORY_BYTES, DEFAULT_TIMEOUT_SECONDS, Limits
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.registry import check_engine, start_engine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import find_runtime
from memgate_worker.verdicts import judge

#: of the contract: other programs look at it
EXIT_STATUS = {"admit": 0, "reject": 3, "uncertain": 4}


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
        int, typer.Option(min=1, help="Optimizer steps after which a script is stopped.")
    ] = 4,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    host_memory: HostMemory = DEFAULT_HOST_MEMORY_BYTES / GIB,
    plot: Picture = None,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Will this job fit on that GPU? Exit status: 0 admit, 3 reject, 4 uncertain.

    The job runs on a GPU that is not there: PyTorch's own CUDA code, no kernel, no weights. A
    script of yours runs as it is, in a process of its own, until its optimizer has made some steps.

    Example: memgate estimate deploy/examples/resnet50.json --gpu rtx-3060

    Example: memgate estimate train.py --gpu a100-80 -- --batch-size 64
    """
    limits: Limits = {"timeout_seconds": timeout, "host_memory_bytes": int(host_memory * GIB)}
    if server:
        refuse(server, **{"a script": job.suffix == ".py", "plot": plot is not None})
        spec = with_runtime(read_spec(job), runtime)
        with connect(server, api_key, silent=as_json) as client:
            said = client.estimate(spec, read_gpu(gpu), engine=engine_name(engine), wait=timeout)
        tell_estimate(said, as_json=as_json)
    target = parse_gpu(read_gpu(gpu))
    plot = prepare_picture(plot) if plot is not None else None
    start = time.perf_counter()
    if job.suffix == ".py":
        script = _Script(path=job, arguments=arguments or [], num_steps=steps)
        traced = _trace_script(script, target, engine, runtime, limits, silent=as_json)
    elif arguments:
        raise InputError(f"{arguments[0]!r}: only a script takes arguments, and {job} is none")
    else:
        traced = _trace_spec(read_spec(job), target, engine, runtime, limits)
    answer = _answer(traced, target, start)
    if plot is not None:
        config = parse_alloc_conf(traced.alloc_conf)
        plot_timeline(traced.timeline, config, target, title=job.name, path=plot)
    tell_estimate(answer, as_json=as_json)


def tell_estimate(answer: Estimate, *, as_json: bool) -> NoReturn:
    """Print an answer, and end with its exit status."""
    if as_json:
        typer.echo(answer.model_dump_json())
    else:
        print_estimate(answer)
    raise typer.Exit(EXIT_STATUS[answer.decision])


class _Script(NamedTuple):
    """A training script, and how it is started."""

    path: Path
    arguments: list[str]
    num_steps: int


def _trace_script(
    script: _Script,
    target: GpuTarget,
    engine: str,
    runtime: str | None,
    limits: Limits,
    *,
    silent: bool,
) -> TracedJob:
    """Run a script on the phantom."""
    if not script.path.is_file():
        raise InputError(f"{script.path}: there is no such script")
    check_engine(engine)
    instead = (
        f"profile the script: memgate profile {script.path} -o TRACE,"
        f" then: memgate analyze TRACE --gpu {target.gpu.name}"
    )
    if engine == "profile":
        raise InputError(f"--engine profile runs job specs; {instead}")
    try:
        with (
            PhantomEngine(find_runtime(runtime)) as phantom,
            show_steps(script.path, script.num_steps, silent=silent) as on_step,
        ):
            return phantom.trace_script(
                script.path,
                script.arguments,
                target.gpu,
                num_steps=script.num_steps,
                on_step=on_step,
                **limits,
            )
    except NotModelledError as error:
        raise NotModelledError(f"{error.message}; {instead}") from None


def _trace_spec(
    spec: JobSpec, target: GpuTarget, engine: str, runtime: str | None, limits: Limits
) -> TracedJob:
    """Run the loop of a job spec."""
    check_engine(engine)  # a wrong word is the caller's, whatever is installed here
    with start_engine(engine, find_runtime(runtime or spec.runtime)) as started:
        return started.trace(spec, target.gpu, **limits)


def read_gpu(text: str) -> Any:
    """Read a GPU as it is given on the command line: a name, or JSON."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"gpu {text!r} is not JSON: {error}") from None


def read_spec(path: Path) -> JobSpec:
    """Read a job spec, JSON or YAML, from a file or (``-``) from standard input.

    Raises:
        InputError: if there is none, with the field and the rule.
        UnsupportedJobError: if it describes a job that memgate cannot run yet.
    """
    try:
        text = sys.stdin.read() if path == Path("-") else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    try:
        spec = read_job_text(text)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.mistakes) from None
    check_supported(spec)
    return spec


@contextmanager
def show_steps(script: Path, steps: int, *, silent: bool) -> Iterator[Any]:
    """Show how far a script has come; it may load data for a while."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as shown:
        task = shown.add_task(f"{script.name}: starting")

        def on_step(num_steps: int) -> None:
            shown.update(task, description=f"{script.name}: step {num_steps} of {steps}")

        yield on_step


def _answer(traced: TracedJob, target: GpuTarget, start: float) -> Estimate:
    traced_at = time.perf_counter()
    answer = judge(traced, target)
    now = time.perf_counter()
    timings = {"trace": traced_at - start, "replay": now - traced_at, "total": now - start}
    return answer.model_copy(
        update={"timings_ms": {name: round(value * 1000) for name, value in timings.items()}}
    )
