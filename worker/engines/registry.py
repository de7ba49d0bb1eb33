"""Engines by name. No torch is imported here: engines run jobs in processes of their own."""

from __future__ import annotations

from typing import Protocol

from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec
from worker.engines.phantom.engine import PhantomEngine
from worker.engines.profile.engine import ProfileEngine
from worker.engines.traced import TracedJob
from worker.runtime import Runtime


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
        timeout_seconds: float = ...,
        host_memory_bytes: int = ...,
    ) -> TracedJob:
        """Run a job and return its timeline on a GPU."""


#: the first is what ``auto`` means: it needs more of the machine it runs on, and knows more
_ENGINES: dict[str, type[PhantomEngine] | type[ProfileEngine]] = {
    "phantom": PhantomEngine,
    "profile": ProfileEngine,
}

ENGINE_NAMES = ("auto", *_ENGINES)


def start_engine(name: str, runtime: Runtime) -> Engine:
    """Start an engine; the caller closes it.

    Raises:
        InputError: if there is no such engine.
    """
    if name not in ENGINE_NAMES:
        raise InputError(f"engine {name!r} is unknown; there are: {', '.join(ENGINE_NAMES)}")
    return _ENGINES["phantom" if name == "auto" else name](runtime)
