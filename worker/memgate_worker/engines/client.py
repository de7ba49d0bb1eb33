"""An engine's end of the host: starts the process, asks, and turns what it says into errors."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import msgspec

import memgate
import memgate_worker
from memgate.errors import (
    HostMemoryError,
    InputError,
    JobFailedError,
    NoKernelsError,
    NotModelledError,
    ProcessLostError,
)
from memgate.units import GIB
from memgate_worker.engines.messages import (
    Answer,
    BadJob,
    Crash,
    Profiled,
    ProfileRun,
    ProfileScriptRun,
    Progress,
    Request,
)
from memgate_worker.engines.starter import start_process
from memgate_worker.runtimes.runtime import Runtime

#: what a job's process may take of this machine unless the caller says otherwise
DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_HOST_MEMORY_BYTES = 8 * GIB


class HostLostError(ProcessLostError):
    """Not a job's process but its host is gone: the engine must be started again."""


class Limits(TypedDict):
    """What a job may take of this machine, as engines take it."""

    timeout_seconds: float
    host_memory_bytes: int


#: in what CUDA says of a GPU that a program was not built for
_NO_KERNELS = "no kernel image is available"

#: how long a host may take to end
_ENDING_SECONDS = 2.0

#: how long a host may take beside what the job may; it ends the job itself, unless it hangs
_SLACK_SECONDS = 120.0


#: run by path: the runtime's own interpreter does not know where memgate is
_START = Path(__file__).with_name("start.py")


def package_dirs() -> tuple[Path, Path]:
    """Return where the two packages are that a host imports: ``memgate`` and ``memgate_worker``."""
    return Path(memgate.__file__).parent, Path(memgate_worker.__file__).parent


class Host:
    """A host process of one runtime, kept warm for many jobs."""

    def __init__(self, runtime: Runtime) -> None:
        """Start it; it imports torch when the first job comes."""
        self._runtime = runtime
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed when the host is
        self._process = start_process(
            lambda: subprocess.Popen(
                [runtime.python, "-P", _START, *map(str, package_dirs())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=host_environment(runtime),
            )
        )

    def close(self) -> None:
        """End the process, and a job in it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it died with a request half written
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # it waits for a job that nobody waits for
            self._process.kill()
            self._process.wait()
        self._said.close()

    def ask(
        self, request: Request, on_step: Callable[[int], None] = lambda _: None
    ) -> Answer | Profiled:
        """Have a job run; ``on_step`` hears how many optimizer steps a script has made.

        Raises:
            InputError: if the job cannot be run as it is written.
            NotModelledError: if it needs what the phantom engine lacks.
            NoKernelsError: if this PyTorch was not built for the GPU.
            HostMemoryError: if the profile engine has too little memory of this machine for it.
            JobFailedError: if it fails for another reason.
        """
        guard = threading.Timer(request.timeout_seconds + _SLACK_SECONDS, self._process.kill)
        guard.daemon = True
        guard.start()
        try:
            self._send(request)
            while isinstance(answer := self._receive(), Progress):
                on_step(answer.num_steps)
        finally:
            guard.cancel()
        if isinstance(answer, BadJob):
            raise InputError(answer.message)
        if isinstance(answer, Crash):
            if answer.unmodelled:
                raise NotModelledError(
                    "the phantom engine cannot know this job's memory: it calls"
                    f" {', '.join(answer.unmodelled)}, of NVIDIA's own libraries"
                )
            if answer.out_of_memory and isinstance(request.work, ProfileRun | ProfileScriptRun):
                raise HostMemoryError(
                    "the profile engine has too little memory of this machine for the job:"
                    f" {answer.message}; use the phantom engine (memgate estimate --engine"
                    " phantom), which needs hardly any, or allow more with --host-memory GIB"
                )
            if _NO_KERNELS in answer.message:
                raise NoKernelsError(f"the job failed: {answer.message}")
            if answer.was_killed:
                raise ProcessLostError(
                    f"the job failed: {answer.message}; if this machine had no memory left, allow"
                    " it less with --host-memory GIB, or use --engine phantom"
                )
            raise JobFailedError(f"the job failed: {answer.message}")
        return answer

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died: told when there is no answer
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def _receive(self) -> Progress | Answer | Profiled | BadJob | Crash:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):  # nothing, or half an answer
            raise HostLostError(self._why_it_died())
        return msgspec.json.decode(line, type=Progress | Answer | Profiled | BadJob | Crash)

    def _why_it_died(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        name = self._runtime.name
        return (
            f"the host of runtime {name} died: {lines[-1] if lines else 'it said nothing'};"
            f" build it again with: make runtime RUNTIME={name}"
        )


def host_environment(runtime: Runtime) -> dict[str, str]:
    """Return what a process of a runtime is started with: little of ours, and our libraries."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    if runtime.has_cudnn:
        kept["MEMGATE_PHANTOM_CUDNN"] = str(runtime.cudnn_dir)
    return kept | {
        "MEMGATE_PHANTOM_LIBRARIES": str(runtime.stubs),
        "LD_LIBRARY_PATH": str(runtime.stubs),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
