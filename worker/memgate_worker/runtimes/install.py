"""Installs and removes runtimes, for ``memgate runtimes install`` and ``remove``.

An environment with PyTorch's ordinary CUDA build but none of NVIDIA's packages, and the stand-ins
that make it run without them; on request also the real cuDNN, which knows the workspaces of
convolutions, and extras by name. What is installed and current is not touched, so it is safe to run
again. Only one process at a time works on a runtime. Each part is complete before its stamp is
written; without the stamp it counts as absent, and is made again. How the environment is filled is
in ``environment``, how an extra is added in ``adding``; what makes a runtime usable is in
``runtime``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from memgate.errors import InputError, RuntimeMissingError, StandInsMissingError
from memgate_worker.runtimes.adding import add_extra
from memgate_worker.runtimes.contents import disk_bytes
from memgate_worker.runtimes.environment import USUAL_BYTES, InstallPlace, Report, make_environment
from memgate_worker.runtimes.extras import choose_extras
from memgate_worker.runtimes.locks import alone, unused
from memgate_worker.runtimes.requirements import name_for, read_requirements
from memgate_worker.runtimes.runtime import Runtime, plan_runtime, why_no_runtime_can_be_built
from memgate_worker.standins.build import build
from memgate_worker.standins.compiler import BuildError
from memgate_worker.standins.torch_build import read_torch_build

#: the cuDNN libraries that choose engines and build plans
_CUDNN_PART = re.compile(r"/libcudnn_(graph|heuristic|engines_\w+)\.so\.9$")

#: how many lines of a failed program's output are shown
_NUM_LAST_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What was done."""

    runtime: Runtime
    #: False: everything was already there, and current
    changed: bool
    seconds: float


def plan_requirements(path: Path, name: str | None = None, home: Path | None = None) -> Runtime:
    """Return the runtime that a job's own requirements file makes, for ``install``.

    Raises:
        InputError: if the file cannot be read, or the name is not one or is taken.
    """
    runtime = plan_runtime(name_for(path, name), read_requirements(path), home)
    return replace(runtime, disk_bytes=runtime.disk_bytes or USUAL_BYTES)


def install(
    runtime: Runtime,
    *,
    with_cudnn: bool = False,
    extras: Sequence[str] = (),
    report: Report = lambda _: None,
) -> Installation:
    """Install what is missing or outdated of a runtime; extras that it has, it keeps.

    Raises:
        InputError: if ``with_cudnn`` or an extra is requested and there is none for this runtime,
            or if its requirements file brings no torch, or one that is too old.
        RuntimeMissingError: if it cannot be installed, with the reason; nothing half-made is left.
        OperatorError: if its libraries would be replaced while they are in use.
    """
    if problem := why_no_runtime_can_be_built():
        raise RuntimeMissingError(problem)
    if with_cudnn and runtime.cudnn is None and runtime.requirements is None:
        raise _no_cudnn(runtime)
    added = choose_extras(
        _extras_there(runtime) | dict.fromkeys(_known(extras, runtime)), runtime.extras
    )
    start = time.monotonic()
    with alone(runtime, report) as lock, _explained(runtime):
        place = InstallPlace(runtime=runtime, report=report, lock=lock)
        changed = not runtime.has_libraries
        if changed:
            runtime = make_environment(place, with_cudnn=with_cudnn)
            place = InstallPlace(runtime=runtime, report=report, lock=lock)
        if changed or not runtime.has_stand_ins:
            changed = True
            _build_stand_ins(place)
        if with_cudnn and not runtime.has_cudnn:
            changed = True
            if runtime.cudnn is None:
                raise _no_cudnn(runtime)
            _install_cudnn(place, runtime.cudnn)
        for extra in added:
            if not runtime.has_extra(extra):
                changed = True
                add_extra(place, extra)
    return Installation(runtime=runtime, changed=changed, seconds=time.monotonic() - start)


def _extras_there(runtime: Runtime) -> dict[str, None]:
    """Return what was added to a runtime and can still be, also if it was described otherwise."""
    return {
        extra.name: None for extra in runtime.extras if (runtime.extras_dir / extra.name).is_file()
    }


def _known(extras: Sequence[str], runtime: Runtime) -> Sequence[str]:
    if extras and runtime.requirements is not None:
        raise InputError(
            f"--with {extras[0]}: runtime {runtime.name!r} is made from {runtime.origin}; add the"
            " library to that file and install the runtime again, without --with"
        )
    return extras


def _no_cudnn(runtime: Runtime) -> InputError:
    return InputError(
        f"runtime {runtime.name!r} names no cuDNN that can plan for a GPU that is not there"
    )


def remove(runtime: Runtime, *, report: Report = lambda _: None) -> int:
    """Remove a runtime, or what is left of one; return how many bytes that freed.

    Raises:
        OperatorError: if it is in use.
    """
    was_written_by_us = runtime.requirements is not None and runtime.definition.is_file()
    if not (runtime.home.exists() or was_written_by_us):
        return 0
    with alone(runtime, report), unused(runtime, "was not removed"):
        freed = disk_bytes(runtime)
        runtime.packages_stamp.unlink(missing_ok=True)  # from here on it counts as absent
        with suppress(FileNotFoundError):
            shutil.rmtree(runtime.home)
        if was_written_by_us:  # last: with it, what is left can still be named
            freed += runtime.definition.stat().st_blocks * 512
            runtime.definition.unlink()
    return freed


@contextmanager
def _explained(runtime: Runtime) -> Iterator[None]:
    """Turn a failure of a program or of the disk into an error for the operator."""
    try:
        yield
    except StandInsMissingError as error:
        raise error.about(f"runtime {runtime.name!r} was not installed") from None
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        said = str(error.stderr if isinstance(error, subprocess.CalledProcessError) else error)
        lines = [line for line in said.strip().splitlines() if not line.startswith("WARNING:")]
        last = "\n".join(lines[-_NUM_LAST_LINES:])
        raise RuntimeMissingError(f"runtime {runtime.name!r} was not installed: {last}") from None


def _build_stand_ins(place: InstallPlace) -> None:
    runtime = place.runtime
    place.report("building the stand-ins for NVIDIA's libraries")
    shutil.rmtree(runtime.stubs, ignore_errors=True)  # without a stamp it is what was left over
    build(read_torch_build(runtime.site_packages / "torch"), runtime.stubs)


def _install_cudnn(place: InstallPlace, package: str) -> None:
    """Install the real cuDNN where only the phantom's host looks."""
    runtime = place.runtime
    place.report(f"installing {package}, which is NVIDIA's and under its licence")
    shutil.rmtree(runtime.cudnn_dir, ignore_errors=True)
    runtime.cudnn_dir.mkdir(parents=True)
    with _downloaded(place, package) as wheels:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in filter(_CUDNN_PART.search, archive.namelist()):
                    target = runtime.cudnn_dir / Path(name).name
                    with archive.open(name) as source, target.open("wb") as copy:
                        shutil.copyfileobj(source, copy)
    place.write_stamp(runtime.cudnn_stamp, package)


@contextmanager
def _downloaded(place: InstallPlace, *packages: str) -> Iterator[list[Path]]:
    # below the runtime's home: the folder for temporary files may be too small
    with tempfile.TemporaryDirectory(dir=place.runtime.home) as directory:
        place.pip("download", "--no-deps", "--dest", directory, *packages)
        yield sorted(Path(directory).glob("*.whl"))
