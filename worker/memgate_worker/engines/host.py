"""The process that imports torch once and forks for each job: no job pays for the import.

``python -m memgate_worker.engines.host``, started by ``host_client`` inside a runtime: one request
per line on standard input, one answer per line on standard output, with lines of progress before
it. Another line, or the end of them, ends the job that runs. A job that crashes or hangs takes only
its own process with it. The parent never touches CUDA and runs no operator: a process that has
started threads cannot be forked safely.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from memgate.errors import HostMemoryError, LimitExceededError, MemgateError, SandboxError
from memgate.estimators.facts import JobFacts
from memgate.jobspec import JobSpec, ModelSource, Trainer
from memgate_worker.engines.child import JobPlace, UnwantedError, run_in_child
from memgate_worker.engines.lines import Lines
from memgate_worker.engines.messages import (
    STOP,
    FactsRun,
    Failed,
    Profiled,
    ProfileRun,
    ProfileScriptRun,
    Progress,
    RecordedRun,
    Request,
    Stopped,
)
from memgate_worker.hook.memgate_hook.phantom import Phantom
from memgate_worker.jobs.failures import explain_end, explain_exception, not_modelled
from memgate_worker.lifeline import die_with_parent
from memgate_worker.sandbox.cell import Cell
from memgate_worker.sandbox.confine import FAILED_STATUS, Jobs

#: the number of a file with the request with which a host has started again
_FIRST_REQUEST = "MEMGATE_HOST_REQUEST"


#: how an answer begins: whatever else is in its place is not one
_ANSWERS = tuple(b'{"type":"%s"' % one for one in (b"recorded", b"profiled", b"facts", b"failed"))
_MAX_ANSWER_BYTES = 1 << 30


def serve(
    requests: Lines,
    answers: BinaryIO,
    phantom: Phantom,
    jobs: Jobs,
    *,
    preloads: bool,
) -> None:
    """Answer requests until there are no more.

    Args:
        requests: one per line.
        answers: gets one line for each, and lines of progress.
        phantom: the GPU that jobs are given.
        jobs: makes their processes.
        preloads: import what jobs need before they are forked.
    """
    for line in requests:
        if line == STOP:
            answers.write(msgspec.json.encode(Stopped()) + b"\n")
            answers.flush()
            continue
        request = msgspec.json.decode(line, type=Request)
        if preloads:
            num_modules = len(sys.modules)
            _preload(request)
            if len(sys.modules) > num_modules:
                _set_apart_what_is_imported()
            if _has_touched_cuda():
                _start_again(line + requests.rest, answers, jobs.cell)
        with _Job(request, answers, phantom, jobs) as job, suppress(UnwantedError):
            answers.write(job.run(requests) + b"\n")
        answers.flush()


class _Job:
    """One request: what its process prints, reports and answers."""

    def __init__(self, request: Request, answers: BinaryIO, phantom: Phantom, jobs: Jobs) -> None:
        self._request = request
        self._answers = answers
        self._phantom = phantom
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the job
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115
        #: what is compiled goes there, and the next job does not find it: it might skip the
        #: allocations of a compilation
        self._folder = tempfile.TemporaryDirectory(
            prefix="memgate-",
            ignore_cleanup_errors=True,  # a process that compiles may be about to end
        )
        self._private = jobs.private_dir(Path(self._folder.name))
        self._told, self._tell = os.pipe()
        self._num_steps = 0
        work = request.work
        #: what only we may write to; a job outside of a sandbox writes it itself
        self._trace: BinaryIO | None = None
        if jobs.cell is not None and isinstance(work, ProfileRun):
            self._trace = open(work.trace_path, "wb")  # noqa: SIM115
        keeps = [self._tell, self._said.fileno(), self._answer.fileno()]
        if self._trace is not None:
            keeps.append(self._trace.fileno())
        self._place = JobPlace(jobs=jobs, folder=Path(self._folder.name), keeps=tuple(keeps))

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._told)
        os.close(self._tell)
        self._said.close()
        self._answer.close()
        if self._trace is not None:
            self._trace.close()
        self._folder.cleanup()

    def run(self, requests: Lines) -> bytes:
        """Return the answer, encoded.

        Raises:
            UnwantedError: if there is another line in ``requests``, or none will come.
        """
        if requests.rest:
            raise UnwantedError
        try:
            code = run_in_child(
                self._work,
                self._request.limits,
                self._place,
                told=self._told,
                on_told=self._pass_on,
                unwanted=requests.fileno(),
            )
        except LimitExceededError as error:
            return self._encode_failure(error)
        except OSError as error:
            return self._encode_failure(SandboxError(f"no sandbox: {error.strerror or error}"))
        if code == FAILED_STATUS and self._place.jobs.cell is not None:
            return self._encode_failure(SandboxError(f"no sandbox: {self._last_line_said()}"))
        if code == 0 and (answer := self._read_answer()):
            return answer
        is_script = self._script() is not None
        return self._encode_failure(explain_end(code, self._last_line_said(), is_script=is_script))

    def _read_answer(self) -> bytes:
        """Return what the job's process wrote, if it can be an answer; code of others ran there.

        More than a line would be taken for the answers of jobs that come later.
        """
        self._answer.seek(0)
        answer = self._answer.read(_MAX_ANSWER_BYTES)
        return answer if answer.startswith(_ANSWERS) and b"\n" not in answer else b""

    def _encode_failure(self, error: MemgateError) -> bytes:
        """Record why there is no answer; for lack of memory, suggest the engine that needs less."""
        is_profile = isinstance(self._request.work, ProfileRun | ProfileScriptRun)
        if is_profile and isinstance(error, HostMemoryError):
            instead = "or use the phantom engine (memgate estimate --engine phantom)"
            error = HostMemoryError(f"{error.message}, {instead}, which needs hardly any")
        return msgspec.json.encode(Failed.of(error))

    def _script(self) -> Path | None:
        """Return the user's own script that is run; None if it is our training loop."""
        work = self._request.work
        return Path(work.script.path) if isinstance(work, ProfileScriptRun) else None

    def _pass_on(self, told: bytes) -> None:
        """One byte for each step; the caller is told how many there were."""
        self._num_steps += len(told)
        progress = Progress(num_steps=self._num_steps)
        self._answers.write(msgspec.json.encode(progress) + b"\n")
        self._answers.flush()

    def _work(self) -> None:
        """Done in the child: run, and write the answer."""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the job must not read the requests
        os.dup2(self._said.fileno(), 1)
        os.dup2(self._said.fileno(), 2)
        os.environ.update(self._request.environment)
        for cache in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[cache] = str(self._private)
        try:
            self._write(msgspec.json.encode(self._run()))
        except SystemExit:
            refused = self._phantom.counters().unmodelled
            if not refused:
                raise
            self._write(self._encode_failure(not_modelled(refused)))
        except Exception as error:  # the job's own code: it may raise anything
            explained = explain_exception(
                error,
                script=self._script(),
                refused=self._phantom.counters().unmodelled,
                allowed_memory=self._request.limits.allowed_memory,
            )
            self._write(self._encode_failure(explained))

    def _run(self) -> RecordedRun | Profiled | JobFacts:
        from memgate_worker.engines.phantom.run import run_job
        from memgate_worker.engines.profile.run import be_frugal
        from memgate_worker.engines.profile.script import profile_script

        work = self._request.work
        if isinstance(work, ProfileScriptRun):
            return profile_script(work, on_step=self._tell_step, finish=self._finish)
        if isinstance(work, ProfileRun):
            if work.frugal:
                be_frugal()
            return self._profile(JobSpec.model_validate_json(work.spec), work.trace_path)
        if isinstance(work, FactsRun):
            return _describe(work)
        return run_job(JobSpec.model_validate_json(work.spec), self._phantom)

    def _profile(self, spec: JobSpec, trace_path: str) -> Profiled:
        from memgate_worker.engines.profile.run import profile_job

        if self._trace is None:
            return profile_job(spec, Path(trace_path))
        written = self._private / "trace.json"
        profiled = profile_job(spec, written)
        with written.open("rb") as trace:
            shutil.copyfileobj(trace, self._trace)
        self._trace.flush()
        return profiled

    def _tell_step(self) -> None:
        os.write(self._tell, b".")

    def _finish(self, answer: Profiled) -> None:
        """End a script where it is: nothing in it can catch this, or go on."""
        self._write(msgspec.json.encode(answer))
        os._exit(0)

    def _write(self, answer: bytes) -> None:
        self._answer.write(answer)
        self._answer.flush()

    def _last_line_said(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _describe(work: FactsRun) -> JobFacts:
    from memgate_worker.engines.estimators.probe import describe_job

    spec = JobSpec.model_validate_json(work.spec)
    facts = describe_job(spec)
    if not work.tracks:
        return facts
    from memgate_worker.engines.estimators.tracker import track_peak

    return msgspec.structs.replace(facts, tracked_bytes=track_peak(spec))


#: the most that trainers import without using CUDA; transformers' own bring peft, and with it
#: bitsandbytes, which uses CUDA while it is imported: a job does that, in about a second
_OF_TRANSFORMERS = ("accelerate", "scipy.stats", "torch._inductor.compile_fx")
_OF_TRAINERS = {
    Trainer.PLAIN: (),
    Trainer.HF: _OF_TRANSFORMERS,
    Trainer.TRL_SFT: (*_OF_TRANSFORMERS, "datasets"),
    Trainer.LIGHTNING: ("lightning.pytorch", "memgate_worker.jobs.trainers.lightning"),
}


def _preload(request: Request) -> None:
    """Import what the job will import, so that later jobs find it there."""
    importlib.import_module("memgate_worker.engines.phantom.run")
    importlib.import_module("memgate_worker.engines.profile.script")
    if isinstance(request.work, ProfileScriptRun):
        return
    spec = JobSpec.model_validate_json(request.work.spec)
    with suppress(Exception):  # the job itself reports it; the host must outlive it
        if spec.model.source is not ModelSource.DIFFUSERS:
            importlib.import_module(spec.model.source)
        if spec.model.source is ModelSource.TRANSFORMERS:
            _hide_torchao()
            configs = importlib.import_module("memgate_worker.jobs.configs")
            class_name, _ = configs.find_config(spec.model)
            classes = importlib.import_module("memgate_worker.jobs.classes")
            classes.find_class(class_name)  # it imports the model's module on first use
        if spec.model.source is ModelSource.DIFFUSERS:
            diffusion = importlib.import_module("memgate_worker.jobs.diffusion")
            diffusion.find_model_class(diffusion.find_settings(spec.model)[0])
        for module in _OF_TRAINERS[spec.trainer]:
            importlib.import_module(module)
        if spec.lora is not None or spec.compile or "." in spec.optimizer.name:
            # Most of what bitsandbytes takes long to import; it uses CUDA itself, so a job does it.
            importlib.import_module("torch._inductor.compile_fx")


def _hide_torchao() -> None:
    """Keep transformers from importing torchao with every model: it uses CUDA while it is imported.

    A job that asks for torchao is given it by memgate, and never by transformers.
    """
    for name in ("transformers.utils.import_utils", "transformers.utils"):
        module: Any = importlib.import_module(name)
        module.is_torchao_available = lambda *_, **__: False


def _has_touched_cuda() -> bool:
    """Say whether a library used CUDA while it was imported (torchao does): nobody can fork now."""
    import torch

    return bool(torch.cuda.is_initialized())


def _start_again(line: bytes, answers: BinaryIO, cell: Cell | None) -> None:
    """Become a host that imports nothing for its jobs, beginning with this request."""
    if cell is not None:
        cell.give_to_environment()
    os.dup2(answers.fileno(), 1)
    waiting = os.memfd_create("request", 0)  # it may be too long for a variable
    with os.fdopen(os.dup(waiting), "wb") as file:
        file.write(line)
    os.lseek(waiting, 0, os.SEEK_SET)
    os.execve(sys.executable, sys.orig_argv, os.environ | {_FIRST_REQUEST: str(waiting)})


def _take_first_request() -> bytes:
    """Return the request that this host has started again with, if it has, and what came after."""
    number = os.environ.pop(_FIRST_REQUEST, "")
    if not number:
        return b""
    with os.fdopen(int(number), "rb") as file:
        return file.read()


def _set_apart_what_is_imported() -> None:
    """Have Python's collector leave alone what no job of ours can free.

    Walking over it would write to every page that a job's process shares with us. The collector
    still counts it when it decides whether a collection is due, so jobs see theirs when they would.
    """
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve standard input."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs = Jobs(Cell.take_from_environment())
    # Answers go out on a separate channel: libraries print to standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Before anything imports torch, which then finds our libraries, whatever else is installed.
    cudnn = os.environ.get("MEMGATE_PHANTOM_CUDNN")
    libraries = Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"])
    phantom = Phantom(libraries, Path(cudnn) if cudnn else None)
    first = _take_first_request()
    serve(Lines(0, first), answers, phantom, jobs, preloads=not first)


if __name__ == "__main__":
    main()
