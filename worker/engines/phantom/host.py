"""The process that has torch imported and forks for each job: no job pays for the import.

``python -m worker.engines.phantom.host``, started by ``engine`` inside a runtime: a request a line
on standard input, an answer a line on standard output. A job that crashes or hangs takes its own
process with it and nothing else. The parent never touches CUDA and runs no operator: a process
that has started threads cannot be forked safely.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import msgspec

from memgate.errors import InputError
from memgate.jobspec import JobSpec, ModelSource
from worker.engines.phantom.answer import Answer, BadJob, Crash, Request
from worker.engines.phantom.control import Phantom


def serve(requests: BinaryIO, answers: BinaryIO, phantom: Phantom) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        answers.write(_answer_in_a_child(request, phantom) + b"\n")
        answers.flush()


def _answer_in_a_child(request: Request, phantom: Phantom) -> bytes:
    spec = JobSpec.model_validate_json(request.job)
    _preload(spec)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            _be_the_child(request, spec, phantom, said, answer)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            return msgspec.json.encode(_crash(status, said))
        answer.seek(0)
        return answer.read()


def _be_the_child(
    request: Request, spec: JobSpec, phantom: Phantom, said: BinaryIO, answer: BinaryIO
) -> None:
    """Run the job, write the answer, and end the process whatever happens."""
    code = 1
    try:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        os.environ.update(request.environment)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(request.timeout_seconds)
        answer.write(msgspec.json.encode(_run(spec, phantom)))
        answer.flush()
        code = 0
    finally:
        os._exit(code)


def _run(spec: JobSpec, phantom: Phantom) -> Answer | BadJob | Crash:
    from worker.engines.phantom.run import run_job

    try:
        return run_job(spec, phantom)
    except InputError as error:
        return BadJob(message=error.message)
    except Exception as error:  # the job's own code: anything may come out of it
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Crash(message=message, unmodelled=phantom.counters().unmodelled)


def _crash(status: int, said: BinaryIO) -> Crash:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return Crash(message="it did not end in time")
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return Crash(message=f"{ended}: {lines[-1] if lines else 'it said nothing'}")


def _preload(spec: JobSpec) -> None:
    """Import what the job will import, so that later jobs find it there."""
    importlib.import_module("worker.engines.phantom.run")
    importlib.import_module(spec.model.source)
    if spec.model.source is ModelSource.TRANSFORMERS:
        transformers = importlib.import_module("transformers")
        getattr(transformers, spec.model.class_name or "", None)


def main() -> None:
    """Serve standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Answers go out on a channel of their own: libraries print to standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Before anything imports torch: it then finds our libraries, whatever else is installed.
    phantom = Phantom(Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"]))
    serve(sys.stdin.buffer, answers, phantom)


if __name__ == "__main__":
    main()
