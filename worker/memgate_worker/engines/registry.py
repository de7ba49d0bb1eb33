"""Engines by name. No torch is imported here: engines run jobs in separate processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from memgate.errors import InputError, NotModelledError
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec
from memgate.mistakes import unknown_name
from memgate.report import Reason
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.runtimes.runtime import Runtime
from memgate_worker.sandbox.policy import STRICTEST, SandboxPolicy


class Engine(Protocol):
    """What turns a job into a timeline; a context manager."""

    #: as people name it
    name: str

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...

    def trace(
        self,
        spec: JobSpec,
        gpu: GpuSpec,
        *,
        limits: RunLimits = ...,
    ) -> TracedJob:
        """Run a job and return its timeline on a GPU."""

    def stop_job(self) -> None:
        """End the job of a ``trace`` that was interrupted; the next one finds the engine warm."""


class AutoEngine:
    """The phantom engine, and the profile engine for jobs that it refuses. A context manager.

    The phantom refuses a job that calls one of NVIDIA's libraries for which it has no stand-in, and
    a CPU does without them. There is no other reason to fall back: both engines run jobs in the
    same runtimes, so where one is not available the other is not either.
    """

    name = "auto"

    def __init__(self, runtime: Runtime, policy: SandboxPolicy = STRICTEST) -> None:
        """Start the phantom; the other is started when it is needed."""
        self._runtime = runtime
        self._policy = policy
        self._engines = ExitStack()
        self._phantom: Engine = self._engines.enter_context(PhantomEngine(runtime, policy))
        self._profile: Engine | None = None

    def __enter__(self) -> AutoEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started."""
        self._engines.close()

    def stop_job(self) -> None:
        """End the job that runs, if one does."""
        self._phantom.stop_job()
        if self._profile is not None:
            self._profile.stop_job()

    def trace(
        self,
        spec: JobSpec,
        gpu: GpuSpec,
        *,
        limits: RunLimits = DEFAULT_LIMITS,
    ) -> TracedJob:
        """Run a job; the answer says by which engine, and if not the phantom, why.

        Raises what the ``trace`` of those engines raises.
        """
        try:
            return self._phantom.trace(spec, gpu, limits=limits)
        except NotModelledError as error:
            if spec.distributed is not None:  # only the phantom has many GPUs
                raise
            refusal = error.message
        if self._profile is None:
            self._profile = self._engines.enter_context(ProfileEngine(self._runtime, self._policy))
        traced = self._profile.trace(spec, gpu, limits=limits)
        doubt = Reason(
            code="PROFILE_INSTEAD",
            message=f"{refusal}; the profile engine answers instead, and does not know what those"
            " calls take",
        )
        return replace(traced, doubts=(doubt, *traced.doubts))


_ENGINES: dict[str, Callable[[Runtime, SandboxPolicy], Engine]] = {
    "auto": AutoEngine,
    "phantom": PhantomEngine,
    "profile": ProfileEngine,
}


def start_engine(name: str, runtime: Runtime, policy: SandboxPolicy = STRICTEST) -> Engine:
    """Start an engine; the caller closes it.

    Raises:
        InputError: if there is no such engine.
        SandboxError: if the operator asks for a sandbox that does not work here.
    """
    check_engine(name)
    return _ENGINES[name](runtime, policy)


def check_engine(name: str) -> None:
    """Refuse an unknown engine name.

    Raises:
        InputError: with the known names.
    """
    if name not in _ENGINES:
        mistake = unknown_name("engine", name, _ENGINES, rule="there is no such engine")
        raise InputError.from_mistakes(mistake)
