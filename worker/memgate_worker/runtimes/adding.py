"""Adds an extra to an installed runtime: new packages beside those that are there, none replaced.

pip is held to the versions that are installed, and forbidden to bring what was left out of torch on
purpose: NVIDIA's libraries. An extra counts once its stamp is complete: the digest of what
describes it, and below that the versions of what it brought. While it is being installed its stamp
says so, since a job may already see half of it; if it fails, what was brought is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import distributions

from memgate_worker.runtimes.environment import (
    INSTALL,
    InstallPlace,
    installed_versions,
    no_space,
)
from memgate_worker.runtimes.extras import Extra
from memgate_worker.runtimes.requirements import canonical, read_dependencies
from memgate_worker.runtimes.runtime import Runtime

_UNFINISHED = "\nunfinished\n"


def add_extra(place: InstallPlace, extra: Extra) -> None:
    """Install an extra.

    Raises:
        OSError: if it does not fit on the disk.
        CalledProcessError: if pip fails.
    """
    runtime = place.runtime
    free = shutil.disk_usage(runtime.home).free
    if free < extra.disk_bytes:
        raise no_space(runtime, extra.disk_bytes, free)
    place.report(f"adding {extra.name}: {', '.join(extra.packages)}")
    before = installed_versions(runtime)
    constraints = _constraints(runtime, extra, before)
    runtime.extras_dir.mkdir(exist_ok=True)
    stamp = runtime.extras_dir / extra.name
    place.write_stamp(stamp, _UNFINISHED)
    try:
        with place.constrained(constraints) as same:
            if extra.bare:
                place.pip(*INSTALL, "--no-deps", *same, *extra.bare)
            if extra.full:
                place.pip(*INSTALL, *same, *extra.full)
    except Exception:
        _take_back(place, before)
        stamp.unlink()
        raise
    place.write_stamp(stamp, f"{extra.digest}\n{_brought(runtime, extra, before)}\n")


def _constraints(runtime: Runtime, extra: Extra, installed: Mapping[str, str]) -> list[str]:
    """Return lines that keep what is there, and keep out what torch does without."""
    named = {need.name for need in read_dependencies(extra.packages)}
    found = distributions(name="torch", path=[str(runtime.site_packages)])
    wanted = {need.name for torch in found for need in read_dependencies(torch.requires or [])}
    left_out = sorted(wanted - installed.keys() - named)
    # What this extra brought before may be replaced: an older definition named other versions.
    stamp = runtime.extras_dir / extra.name
    own = set(stamp.read_text().split()) if stamp.is_file() else set()
    kept = [f"{name}=={version}" for name, version in installed.items()]
    return [line for line in kept if line not in own] + [f"{name}<0" for name in left_out]


def _take_back(place: InstallPlace, before: Mapping[str, str]) -> None:
    added = sorted(installed_versions(place.runtime).keys() - before.keys())
    if added:
        place.pip("uninstall", "--yes", *added)


def _brought(runtime: Runtime, extra: Extra, before: Mapping[str, str]) -> str:
    named = {canonical(need.name) for need in read_dependencies(extra.packages)}
    return " ".join(
        f"{name}=={version}"
        for name, version in sorted(installed_versions(runtime).items())
        if name not in before or name in named
    )
