"""An engine's end of the host: starts the process, asks, and turns what it says into errors."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress

import msgspec

from memgate.errors import EngineError, HostMemoryError, InputError
from memgate.units import GIB
from worker.engines.messages import (
    Answer,
    BadJob,
    Crash,
    Profiled,
    ProfileRun,
    ProfileScriptRun,
    Progress,
    Request,
)
from worker.runtime import Runtime

#: what a job's process may take of this machine unless the caller says otherwise
DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_HOST_MEMORY_BYTES = 8 * GIB


class Host:
    """A host process of one runtime, kept warm for many jobs."""

    def __init__(self, runtime: Runtime) -> None:
        """Start it; it imports torch when the first job comes."""
        self._runtime = runtime
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed when the host is
        self._process = subprocess.Popen(
            [runtime.python, "-m", "worker.engines.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=host_environment(runtime),
        )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._said.close()

    def ask(
        self, request: Request, on_step: Callable[[int], None] = lambda _: None
    ) -> Answer | Profiled:
        """Have a job run; ``on_step`` hears how many optimizer steps a script has made.

        Raises:
            InputError: if the job cannot be run as it is written, or needs what the engine lacks.
            HostMemoryError: if the profile engine has too little memory of this machine for it.
            EngineError: if it fails for another reason.
        """
        self._send(request)
        while isinstance(answer := self._receive(), Progress):
            on_step(answer.num_steps)
        if isinstance(answer, BadJob):
            raise InputError(answer.message)
        if isinstance(answer, Crash):
            if answer.unmodelled:
                raise InputError(
                    "the phantom engine cannot know this job's memory: it calls"
                    f" {', '.join(answer.unmodelled)}, of NVIDIA's own libraries"
                )
            if answer.out_of_memory and isinstance(request.work, ProfileRun | ProfileScriptRun):
                raise HostMemoryError(
                    "the profile engine has too little memory of this machine for the job:"
                    f" {answer.message}; use the phantom engine (memgate estimate --engine"
                    " phantom), which needs hardly any, or allow more with --host-memory GIB"
                )
            raise EngineError(f"the job failed: {answer.message}")
        return answer

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died: told when there is no answer
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def _receive(self) -> Progress | Answer | Profiled | BadJob | Crash:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(self._why_it_died())
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
