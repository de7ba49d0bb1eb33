"""Runtimes as they are installed here -> the identities under which runs and answers are kept.

Everything is read from the disk, without starting a process of the runtime. It is looked at again
for each question, since an operator may install a runtime or cuDNN while a worker runs; libraries
are read again if other ones are there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from memgate.contract import Work
from memgate.run_key import EngineIdentity, RuntimeIdentity
from memgate.version import __version__
from memgate_worker.engines.revision import ENGINE_REVISION
from memgate_worker.engines.versions import library_versions, versions_beside
from memgate_worker.runtimes.contents import read_extra_versions
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, Runtime, read_runtimes
from memgate_worker.standins.build import STAMP_NAME

#: of a runtime that is not installed
_NONE: Mapping[str, str] = {}


def identify_engine(runtime: Runtime | None = None) -> EngineIdentity:
    """Return the identity of the engines in a runtime; without one, of the analysis of traces."""
    return EngineIdentity(
        version=__version__,
        revision=ENGINE_REVISION,
        runtime=RuntimeIdentity() if runtime is None else _identify_runtime(runtime),
    )


def identify_engines() -> tuple[EngineIdentity, ...]:
    """Return the identities of everything that a worker on this machine can run."""
    installed = [runtime for runtime in read_runtimes().values() if runtime.is_installed]
    return (identify_engine(), *map(identify_engine, installed))


def identify_work(work: Work) -> str:
    """Return the digest of the identity that answers a question; empty if nothing here can."""
    if work.job is None:
        return identify_engine().digest()
    runtime = read_runtimes().get(work.job.runtime or DEFAULT_RUNTIME)
    if runtime is None or not runtime.is_installed:
        return ""
    return identify_engine(runtime).digest()


def _list_packages(site_packages: Path) -> tuple[tuple[str, int], ...]:
    """Return what changes with every library that is installed: folders that have its version."""
    try:
        with os.scandir(site_packages) as found:
            folders = [one for one in found if one.name.endswith((".dist-info", ".egg-info"))]
            return tuple(sorted((one.name, one.stat().st_mtime_ns) for one in folders))
    except FileNotFoundError:
        return ()


@lru_cache(maxsize=16)
def _read_versions(site_packages: Path, _: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
    """Read versions; that takes longer than all else that is read for a question."""
    return library_versions(site_packages) | versions_beside(site_packages)


def _identify_runtime(runtime: Runtime) -> RuntimeIdentity:
    stamp = runtime.stubs / STAMP_NAME
    try:
        where = runtime.site_packages
        versions = _read_versions(where, _list_packages(where))
    except StopIteration:  # it is not installed, or is being installed again
        versions = _NONE
    return RuntimeIdentity(
        name=runtime.name,
        versions=tuple(versions.items()),
        cudnn=runtime.cudnn if runtime.has_cudnn else None,
        stubs=stamp.read_text() if stamp.is_file() else "",
        extras=read_extra_versions(runtime),
    )
