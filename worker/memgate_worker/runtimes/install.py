"""Installs and removes runtimes, for ``memgate runtimes install`` and ``remove``.

An environment with PyTorch's ordinary CUDA build but none of NVIDIA's packages, and the stand-ins
that make it run without them; on request also the real cuDNN, which knows the workspaces of
convolutions. What is installed and current is not touched, so it is safe to run again. Only one
process at a time works on a runtime. Each part is complete before its stamp is written; without the
stamp it counts as absent, and is made again. What makes a runtime usable is in ``runtime``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memgate.errors import InputError, RuntimeMissingError, StandInsMissingError
from memgate.units import format_size
from memgate_worker.runtimes.runtime import OWN_NEEDS, Runtime, why_no_runtime_can_be_built
from memgate_worker.standins.build import build
from memgate_worker.standins.compiler import BuildError, find_compiler
from memgate_worker.standins.torch_build import read_torch_build

#: told what is being done
Report = Callable[[str], None]

#: the cuDNN libraries that choose engines and build plans
_CUDNN_PART = re.compile(r"/libcudnn_(graph|heuristic|engines_\w+)\.so\.9$")

#: how many lines of a failed program's output are shown
_NUM_LAST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What was done."""

    #: False: everything was already there, and current
    changed: bool
    seconds: float


def install(
    runtime: Runtime, *, with_cudnn: bool = False, report: Report = lambda _: None
) -> Installation:
    """Install what is missing or outdated of a runtime.

    Raises:
        InputError: if ``with_cudnn`` is requested and there is none for this runtime.
        RuntimeMissingError: if it cannot be installed, with the reason; nothing half-made is left.
    """
    if problem := why_no_runtime_can_be_built():
        raise RuntimeMissingError(problem)
    if with_cudnn and runtime.cudnn is None:
        raise InputError(
            f"runtime {runtime.name!r} names no cuDNN that can plan for a GPU that is not there"
        )
    start = time.monotonic()
    with _alone(runtime, report):
        missing = [
            make
            for is_there, make in (
                (runtime.has_libraries, _install_libraries),
                (runtime.has_libraries and runtime.has_stand_ins, _build_stand_ins),
                (not with_cudnn or runtime.has_cudnn, _install_cudnn),
            )
            if not is_there
        ]
        for make in missing:
            with _explained(runtime):
                make(runtime, report)
    return Installation(changed=bool(missing), seconds=time.monotonic() - start)


def remove(runtime: Runtime, *, report: Report = lambda _: None) -> int:
    """Remove a runtime, or what is left of one; return how many bytes that freed."""
    if not runtime.home.exists():
        return 0
    with _alone(runtime, report):
        freed = disk_bytes(runtime)
        runtime.packages_stamp.unlink(missing_ok=True)  # from here on it counts as absent
        shutil.rmtree(runtime.home)
    return freed


def disk_bytes(runtime: Runtime) -> int:
    """Return how much space a runtime takes, not following links."""
    return sum(
        (Path(directory) / name).lstat().st_blocks * 512
        for directory, _, names in os.walk(runtime.home)
        for name in names
    )


@contextmanager
def _alone(runtime: Runtime, report: Report) -> Iterator[None]:
    """Let one process at a time work on a runtime; others wait."""
    runtime.home.parent.mkdir(parents=True, exist_ok=True)
    with (runtime.home.parent / f".{runtime.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that installs or removes it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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


def _install_libraries(runtime: Runtime, report: Report) -> None:
    """Make the environment; in place, since an environment cannot be moved."""
    find_compiler()  # which will be needed
    _check_for_space(runtime)
    runtime.packages_stamp.unlink(missing_ok=True)
    for stale in runtime.home.glob("stand-ins-*"):  # they belong to the torch that is replaced
        shutil.rmtree(stale)
    runtime.home.mkdir(parents=True, exist_ok=True)
    try:
        report(f"installing {', '.join(runtime.bare)}, without NVIDIA's packages")
        venv.create(runtime.venv, with_pip=True, clear=True)
        # what is left out on purpose would otherwise be reported as an error
        install = ("install", "--no-warn-conflicts")
        _pip(runtime, *install, "--no-deps", *runtime.bare)
        report("installing what they need")
        _pip(runtime, *install, *runtime.full, *OWN_NEEDS)
    except BaseException:
        shutil.rmtree(runtime.venv, ignore_errors=True)  # it is large
        raise
    _write_last(runtime.packages_stamp, runtime.definition_digest(sys.version_info[:2]))


def _build_stand_ins(runtime: Runtime, report: Report) -> None:
    report("building the stand-ins for NVIDIA's libraries")
    shutil.rmtree(runtime.stubs, ignore_errors=True)  # without a stamp it is what was left over
    build(read_torch_build(runtime.site_packages / "torch"), runtime.stubs)


def _install_cudnn(runtime: Runtime, report: Report) -> None:
    """Install the real cuDNN where only the phantom's host looks."""
    assert runtime.cudnn is not None
    report(f"installing {runtime.cudnn}, which is NVIDIA's and under its licence")
    shutil.rmtree(runtime.cudnn_dir, ignore_errors=True)
    runtime.cudnn_dir.mkdir(parents=True)
    with _downloaded(runtime, runtime.cudnn) as wheels:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in filter(_CUDNN_PART.search, archive.namelist()):
                    target = runtime.cudnn_dir / Path(name).name
                    with archive.open(name) as source, target.open("wb") as copy:
                        shutil.copyfileobj(source, copy)
    _write_last(runtime.cudnn_stamp, runtime.cudnn)


def _check_for_space(runtime: Runtime) -> None:
    runtime.home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(runtime.home).free
    there = disk_bytes(runtime)  # will be replaced
    if free + there < runtime.disk_bytes:
        raise OSError(
            f"it takes {format_size(runtime.disk_bytes)}, and {runtime.home} has"
            f" {format_size(free)} free; make room, or set MEMGATE_RUNTIMES_DIR to another folder"
        )


@contextmanager
def _downloaded(runtime: Runtime, *packages: str) -> Iterator[list[Path]]:
    # below the runtime's home: the folder for temporary files may be too small
    with tempfile.TemporaryDirectory(dir=runtime.home) as directory:
        _pip(runtime, "download", "--no-deps", "--dest", directory, *packages)
        yield sorted(Path(directory).glob("*.whl"))


def _pip(runtime: Runtime, *arguments: str) -> None:
    quiet = ("-P", "-m", "pip", "--quiet", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory(dir=runtime.home) as directory:
        subprocess.run(
            [runtime.python, *quiet, *arguments],
            env=os.environ | {"TMPDIR": directory},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )


def _write_last(stamp: Path, text: str) -> None:
    """Write a stamp completely, or not at all."""
    fresh = stamp.with_name(stamp.name + ".new")
    fresh.write_text(text)
    fresh.rename(stamp)
