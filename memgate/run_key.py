"""One identity of a run: the same key, the same events. Every cache of runs and answers uses it.

A run is what an engine does to turn a job into a timeline. Its key holds everything that the
timeline depends on, and nothing else: a replay answers for other capacities and other allocator
settings. Where each cache is, and what invalidates it, is in ``docs/caches.md``.

Reading versions off the disk is the worker's business (``engines.identity``).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from memgate.gpus import GpuSpec

if TYPE_CHECKING:  # a process that judges an upload has no job spec, and starts sooner without
    from memgate.jobspec import JobSpec

#: the layout of a stored timeline; raise it when ``TracedJob`` or ``Timeline`` changes
LAYOUT = 5

#: of a digest, in hexadecimal: enough to rule out collisions
_DIGEST_LENGTH = 40

#: it runs jobs on the CPU, where cuDNN tries nothing
_CPU_ENGINE = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeIdentity:
    """A runtime as it is installed: two of one name may differ."""

    #: empty for the analysis of a trace, which needs no runtime
    name: str = ""
    #: of each library that jobs use, in a fixed order
    versions: tuple[tuple[str, str], ...] = ()
    #: the real cuDNN, by name and version; None if the stand-in answers for it
    cudnn: str | None = None
    #: digest of the stand-ins for NVIDIA's libraries, as they were built
    stubs: str = ""
    #: what was added by name, each with the versions of its packages
    extras: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """Everything except the question that a run, and so an answer, depends on."""

    #: of memgate
    version: str
    #: ``ENGINE_REVISION``, raised whenever an engine's events change
    revision: int
    runtime: RuntimeIdentity
    layout: int = LAYOUT

    def digest(self) -> str:
        """Return a short name that two identities share only if they are equal."""
        return _digest(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTraits:
    """The properties of a GPU that a run depends on.

    Compute capability and multiprocessors choose kernels, and with them scratch memory: of ten
    jobs measured, the number of multiprocessors changed the events of six and the memory needed of
    two, by up to 1.8 % within one generation. With ``cudnn_benchmark``, only plans whose workspaces
    fit in memory are tried, so the memory counts too.
    """

    compute_capability: tuple[int, int]
    multiprocessors: int | None = None
    memory_bytes: int | None = None

    @classmethod
    def of(cls, gpu: GpuSpec, job: JobSpec, engine: str) -> GpuTraits:
        """Return what a run of a job by an engine depends on."""
        is_tried = job.cudnn_benchmark and engine != _CPU_ENGINE
        return cls(
            compute_capability=gpu.compute_capability,
            multiprocessors=gpu.multiprocessors,
            memory_bytes=gpu.memory_bytes if is_tried else None,
        )

    def match(self, gpu: GpuSpec) -> bool:
        """Say whether a GPU has these properties; those that are None do not matter."""
        found = (gpu.compute_capability, gpu.multiprocessors, gpu.memory_bytes)
        wanted = (self.compute_capability, self.multiprocessors, self.memory_bytes)
        return all(want in (None, have) for want, have in zip(wanted, found, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """The identity of a run."""

    #: the spec as canonical JSON, without the allocator's settings and the runtime's name
    job: str
    #: None if the run is the same for all GPUs
    gpu: GpuTraits | None
    engine: str
    made_by: EngineIdentity

    @classmethod
    def of(
        cls, job: JobSpec, gpu: GpuSpec | None, *, engine: str, made_by: EngineIdentity
    ) -> RunKey:
        """Return the key of the run of a job for a GPU."""
        document = job.model_dump(mode="json", by_alias=True, exclude={"allocator", "runtime"})
        return cls(
            job=_canonical(document),
            gpu=None if gpu is None else GpuTraits.of(gpu, job, engine),
            engine=engine,
            made_by=made_by,
        )

    def digest(self) -> str:
        """Return a short name that two keys share only if they are equal."""
        return _digest(asdict(self))


def _canonical(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()[:_DIGEST_LENGTH]
