"""Runtimes for tests: some only look installed, some share the libraries of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from memgate_worker.runtimes.runtime import OWN_NEEDS, Runtime
from memgate_worker.standins.build import STAMP_NAME


def pretend_installed(runtime: Runtime) -> None:
    """Make what an installed runtime looks like from outside; nothing can be run in it."""
    (runtime.venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    runtime.python.parent.mkdir()
    runtime.python.touch()
    for name in OWN_NEEDS:
        add_library(runtime, name, "99.0")
    runtime.packages_stamp.write_text(runtime.definition_digest((3, 11)))
    runtime.stubs.mkdir()
    (runtime.stubs / STAMP_NAME).write_text("built")


def add_library(runtime: Runtime, name: str, version: str) -> None:
    """Make what says that a library is installed; another version of it is gone."""
    for old in runtime.site_packages.glob(f"{name}-*"):
        (old / "METADATA").unlink()
        old.rmdir()
    folder = runtime.site_packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def share_libraries(runtime: Runtime, home: Path, *, with_stand_ins: bool = True) -> Runtime:
    """Return a runtime in another place that has the libraries, but not the extras, of this one."""
    shared = replace(runtime, home=home)
    home.mkdir(parents=True, exist_ok=True)
    names = ["venv", "packages", *([runtime.stubs.name] if with_stand_ins else [])]
    names += ["own"] if runtime.own.exists() else []
    for name in names:
        link, target = home / name, runtime.home / name
        if link.is_symlink() and link.readlink() != target:  # the checkout was moved
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(target)
    return shared
