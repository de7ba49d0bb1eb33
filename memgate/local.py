"""``memgate.estimate``: an answer in this process, by the engines of ``memgate_worker``.

Apart from ``client`` this is the only part of the package that reaches outside: it reads the file
that it is given, and imports the worker's door when it is called. A job runs in a separate process,
which the first call starts and later calls reuse; it ends with this process, or by
``close_engines``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.contract import EngineName
from memgate.errors import InputError, MissingExtraError
from memgate.file_kinds import HEAD_BYTES, FileKind, find_file_kind
from memgate.given_files import open_given_file, read_lengths
from memgate.gpus import GpuRequest, parse_gpu
from memgate.jobspec import DEVICE_OF_A_JOB, INFERENCE_OF_A_JOB, JobSpec, parse_job_spec
from memgate.report import Estimate
from memgate.spec_text import read_job_bytes
from memgate.timeline_file import reading as timeline_file
from memgate.timeline_file.recorded import RecordedTimeline


def estimate(
    job: JobSpec | Mapping[str, Any] | str | os.PathLike[str],
    gpu: str | GpuRequest | Mapping[str, Any],
    *,
    engine: EngineName = "auto",
    runtime: str | None = None,
    allocator: str | None = None,
    timeout_seconds: float | None = None,
    host_memory_bytes: int | None = None,
    device: int | None = None,
    inference: bool = False,
) -> Estimate:
    """Say whether a training job fits on a GPU, without a server and without a GPU.

    The first call takes a few seconds: it starts a process that imports torch. Later calls find it
    warm. Threads may call this; they are answered one after another.

    Args:
        job: a ``JobSpec``, the same as a dict, or the path of a file: a job spec (JSON or YAML),
            a trace of torch.profiler (``.json`` or ``.json.gz``), a memory snapshot or a timeline
            file (``memgate run -o FILE``), told apart by their content.
        gpu: a name from the catalogue (``memgate gpus``), or a description of a GPU.
        engine: ``auto``, ``phantom`` or ``profile``. Only a job spec needs one.
        runtime: the library versions to run with (``memgate runtimes``), instead of the job's.
        allocator: a ``PYTORCH_ALLOC_CONF`` string, instead of the job's or the file's.
        timeout_seconds: the longest that the job may run; ten minutes unless given.
        host_memory_bytes: the most of this machine's memory it may take; 8 GiB unless given.
        device: which device of a snapshot or a trace of several GPUs; unless given, all are
            answered and the worst decides.
        inference: the job of a trace does not train; without a backward pass it may then be
            admitted.

    Returns:
        The estimate. If a job does not fit, that is an answer (``decision``), not an error.

    Raises:
        InputError: if something in the question is wrong, naming the field and the rule.
        RuntimeMissingError: if the runtime is not installed, with the command that installs it.
        MissingExtraError: if a package is not installed, with the command that installs it.
        MemgateError: if there is no answer for another reason; ``fault`` says whose fault it is.
    """
    try:
        from memgate_worker import local
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("memgate.estimate", error, extra="worker") from None
    local.check_engine(engine)
    local.load_own_gpus()
    limits = local.RunLimits.of(timeout_seconds, host_memory_bytes)
    target = parse_gpu(gpu)
    parse_alloc_conf(allocator or "")
    found, kind = _find_job(job)
    if isinstance(found, Path):
        if engine != "auto" or runtime is not None:
            raise InputError(f"{found} is a {kind}: leave out engine and runtime")
        with open_given_file(found) as stream:
            return local.estimate_upload(
                stream, target, alloc_conf=allocator or "", device=device, inference=inference
            ).estimate
    _refuse_for_spec(device, inference=inference)
    spec = found if allocator is None else found.model_copy(update={"allocator": allocator})
    return local.estimate_spec(spec, target, engine=engine, runtime=runtime, limits=limits).estimate


def _refuse_for_spec(device: int | None, *, inference: bool) -> None:
    """Refuse what only files of recorded runs can be asked."""
    if device is not None:
        raise InputError(DEVICE_OF_A_JOB.format(device=device))
    if inference:
        raise InputError(INFERENCE_OF_A_JOB)


def read_timeline(path: str | os.PathLike[str]) -> RecordedTimeline:
    """Read what a timeline file says: events, phases, shapes of batches, versions, the command.

    Safe for files of strangers: nothing in one is code, and everything is checked and bounded.

    Raises:
        TimelineFileError: if it is not one, or breaks a rule of the format, naming field and rule.
        InputError: if it cannot be read.
    """
    with open_given_file(Path(path)) as stream:
        return timeline_file.read_timeline(stream)


def close_engines() -> None:
    """End the processes that earlier calls left warm; the next call starts them again."""
    from memgate_worker import local

    local.close_engines()


def _find_job(
    job: JobSpec | Mapping[str, Any] | str | os.PathLike[str],
) -> tuple[JobSpec | Path, FileKind]:
    """Return the job spec that is meant, or the path of another file, and which it is."""
    if isinstance(job, JobSpec):
        return job, FileKind.JOB_SPEC
    if isinstance(job, Mapping):
        return parse_job_spec(read_lengths(dict(job), Path())), FileKind.JOB_SPEC
    if not isinstance(job, str | os.PathLike):
        raise InputError(
            f"job is of type {type(job).__name__}: give a JobSpec, a dict, or the path of a file"
        )
    if isinstance(job, str) and ("\n" in job or job.lstrip().startswith("{")):
        raise InputError("job is text, not a path: give a JobSpec, a dict, or the path of a file")
    path = Path(job)
    if path.suffix == ".py":
        raise InputError(
            f"{path} is a script: ask on the command line, memgate estimate {path} --gpu GPU"
        )
    with open_given_file(path) as stream:
        head = stream.read(HEAD_BYTES)
        kind = find_file_kind(head)
        if kind is not FileKind.JOB_SPEC:
            return path, kind
        return read_job_bytes(head, lambda document: read_lengths(document, path.parent)), kind
