"""An engine's end of the host: starts the process, asks it, and turns failures into errors."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from errno import ENOENT
from pathlib import Path

import msgspec

import memgate
import memgate_worker
from memgate.errors import (
    HostMemoryError,
    MemgateError,
    ProcessLostError,
    RuntimeBrokenError,
    SandboxError,
)
from memgate_worker.engines.messages import (
    STOP,
    Failed,
    Profiled,
    Progress,
    RecordedRun,
    Request,
    Stopped,
)
from memgate_worker.engines.starter import start_process
from memgate_worker.jobs.libraries import describe_runtime
from memgate_worker.runtimes.locks import Use
from memgate_worker.runtimes.runtime import Runtime, install_command
from memgate_worker.sandbox.housing import House
from memgate_worker.sandbox.policy import STRICTEST, SandboxPolicy

#: sent by people, supervisors and a system out of memory: they say nothing about a runtime
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: how long a host may take to end
_ENDING_SECONDS = 2.0

#: how long a host may take on top of the job; it ends the job itself, unless it hangs
_SLACK_SECONDS = 120.0


#: run by path: the runtime's own interpreter does not know where memgate is
_START = Path(__file__).with_name("start.py")


def package_dirs() -> tuple[Path, Path]:
    """Return where the two packages that a host imports are: ``memgate`` and ``memgate_worker``."""
    return Path(memgate.__file__).parent, Path(memgate_worker.__file__).parent


class Host:
    """A host process of one runtime, kept warm for many jobs; one that died is started again."""

    def __init__(
        self, runtime: Runtime, *packages: Path, policy: SandboxPolicy | None = STRICTEST
    ) -> None:
        """Start it; it imports torch when the first job comes.

        Args:
            runtime: whose libraries jobs see.
            packages: folders with packages that jobs see if the runtime lacks them.
            policy: which sandbox jobs run in; None: none, for a user's own code on their machine.

        Raises:
            RuntimeBrokenError: if there is nothing to start.
            SandboxError: if the operator asks for a sandbox that does not work here.
        """
        self._runtime = runtime
        self._packages = packages
        self._policy = policy
        self._start()

    @property
    def traces(self) -> Path | None:
        """Where the process can write for us; None: wherever we can."""
        return None if self._house is None else self._house.written

    def _start(self) -> None:
        self._has_answered = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed when the host is
        self._use = Use(self._runtime)
        self._house: House | None = None
        places = (*package_dirs(), self._runtime.own, *self._packages)
        command = [str(self._runtime.python), "-P", str(_START), *map(str, places)]
        environment = host_environment(self._runtime)
        joined_by: tuple[int, ...] = ()
        try:
            if not self._runtime.python.exists():
                raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
            if self._policy is not None:
                self._house = House(self._policy, (*self._seen(), *places))
                environment = self._house.environment(environment)
                command, joined_by = self._house.command(command), self._house.joined_by
            self._process = start_process(
                lambda: subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._said,
                    env=environment,
                    pass_fds=joined_by,
                )
            )
        except (OSError, SandboxError) as error:
            self._let_go()
            if isinstance(error, SandboxError):
                raise
            raise self._broken(f"{self._runtime.python}: {error.strerror or error}") from None

    def _seen(self) -> tuple[Path, ...]:
        """Return what of the machine jobs see: their runtime, and its interpreter."""
        runtime = self._runtime
        return (runtime.venv, runtime.interpreter_home, runtime.stubs, runtime.cudnn_dir)

    def _let_go(self) -> None:
        self._said.close()
        self._use.close()
        if self._house is not None:
            self._house.close()

    def close(self) -> None:
        """End the process, and any job in it."""
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
        self._let_go()

    def ask(
        self, request: Request, on_step: Callable[[int], None] = lambda _: None
    ) -> RecordedRun | Profiled:
        """Have a job run; ``on_step`` is told how many optimizer steps a script has made.

        Raises:
            MemgateError: the error that the host reports for a job without an answer.
            RuntimeBrokenError: if the host does not start.
            ProcessLostError: if the host was lost.
        """
        if self._process.poll() is not None:
            self.close()
            self._start()
        if self._house is not None:
            self._house.limit_memory(request.limits.memory_bytes)
        guard = threading.Timer(request.limits.seconds + _SLACK_SECONDS, self._process.kill)
        guard.daemon = True
        guard.start()
        try:
            self._send(request)
            while isinstance(answer := self._receive(), Progress):
                on_step(answer.num_steps)
        finally:
            guard.cancel()
        self._has_answered = True
        if isinstance(answer, Failed):
            raise self._explain(answer, request)
        return answer

    def _explain(self, answer: Failed, request: Request) -> MemgateError:
        """Return the error that the host reports, or the limit that the kernel has enforced."""
        if self._house is not None and self._house.has_run_out_of_memory:
            return HostMemoryError(
                "the job's run took more memory of this machine than"
                f" {request.limits.allowed_memory}"
            )
        return answer.error()

    def stop_job(self) -> None:
        """End the job of an ``ask`` that was interrupted; a host that does not obey is ended."""
        assert self._process.stdout is not None
        guard = threading.Timer(_ENDING_SECONDS, self._process.kill)
        guard.daemon = True
        guard.start()
        try:
            self._send_line(STOP)
            while line := self._process.stdout.readline():
                if _says_stopped(line):
                    return
        finally:
            guard.cancel()
        self._process.wait()  # the next ``ask`` starts another

    def _send(self, request: Request) -> None:
        self._send_line(msgspec.json.encode(request) + b"\n")

    def _send_line(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died: reported when there is no answer
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _receive(self) -> Progress | RecordedRun | Profiled | Failed:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):  # nothing, or half an answer
            raise self._why_it_died()
        return msgspec.json.decode(line, type=Progress | RecordedRun | Profiled | Failed)

    def _why_it_died(self) -> MemgateError:
        """Distinguish a runtime that does not start from a host that was lost.

        A host that was killed says nothing about its runtime, and one that has answered works.
        """
        try:
            status = self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # its end of the pipe is closed, so it is useless now
            self._process.kill()
            status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        if self._has_answered or -status in _FROM_OUTSIDE:
            return ProcessLostError(
                f"the host of runtime {self._runtime.name} died: {last}; ask again"
            )
        return self._broken(last)

    def _broken(self, why: str) -> RuntimeBrokenError:
        name = self._runtime.name
        return RuntimeBrokenError(
            f"runtime {name} does not start: {why}; install it again with: {install_command(name)}"
        )


def _says_stopped(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line, type=Progress | Stopped), Stopped)
    except msgspec.DecodeError:  # an answer, or half of one
        return False


def host_environment(runtime: Runtime) -> dict[str, str]:
    """Return the environment of a runtime's process: little of ours, and our libraries."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    commands = {
        module: install_command(runtime.name, extra=extra.name)
        for extra in runtime.extras
        for module in extra.modules
    }
    made = runtime.requirements is not None
    kept |= describe_runtime(runtime.name, commands, is_from_requirements=made)
    if runtime.has_cudnn:
        kept["MEMGATE_PHANTOM_CUDNN"] = str(runtime.cudnn_dir)
    return kept | {
        "MEMGATE_PHANTOM_LIBRARIES": str(runtime.stubs),
        "LD_LIBRARY_PATH": str(runtime.stubs),
        "TRITON_LIBCUDA_PATH": str(runtime.stubs),  # it looks for the driver's library by itself
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
