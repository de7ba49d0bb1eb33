"""Builds a runtime: ``python -m memgate_worker.runtimes.setup torch-2.14``, or ``make runtime``.

An environment with PyTorch's ordinary CUDA build but none of NVIDIA's packages, and the stand-ins
that make it run without them. Quick if nothing changed. With ``--with-cudnn`` also the real cuDNN,
which is asked for the workspaces of convolutions.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from memgate.errors import InputError
from memgate.mistakes import unknown_name
from memgate_worker.engines.phantom.build import BuildError, build, build_tracker
from memgate_worker.runtimes.runtime import (
    DEFAULT_RUNTIME,
    Runtime,
    read_runtimes,
    why_no_runtime_can_be_built,
)

#: those of cuDNN's libraries that choose engines and build plans
_CUDNN_PART = re.compile(r"/libcudnn_(graph|heuristic|engines_\w+)\.so\.9$")

#: what memgate itself needs inside a runtime
_OWN_NEEDS = ("msgspec", "psutil", "pydantic")


def set_up(runtime: Runtime) -> None:
    """Build what is missing of a runtime."""
    digest = _digest(runtime)
    packages_stamp = runtime.home / "packages"
    if not (packages_stamp.is_file() and packages_stamp.read_text() == digest):
        _install_packages(runtime)
        packages_stamp.write_text(digest)
    torch_dir = runtime.site_packages / "torch"
    vision = runtime.site_packages / "torchvision"
    _say(f"{runtime.name}: building the stand-ins for NVIDIA's libraries")
    build(torch_dir, runtime.headers_dir, runtime.stubs, sorted(vision.glob("*.so")))
    build_tracker(torch_dir, runtime.headers_dir, runtime.stubs)
    runtime.stamp.write_text(digest)
    _say(f"{runtime.name}: ready in {runtime.home}")


def install_cudnn(runtime: Runtime) -> None:
    """Install the real cuDNN beside a runtime, where nothing but the phantom's host looks.

    Raises:
        InputError: if there is none for this runtime.
    """
    if runtime.cudnn is None:
        raise InputError(
            f"runtime {runtime.name!r} names no cuDNN that can plan for a GPU that is not there"
        )
    if runtime.has_cudnn:
        return
    _say(f"{runtime.name}: installing {runtime.cudnn}, which is NVIDIA's and under its licence")
    shutil.rmtree(runtime.cudnn_dir, ignore_errors=True)
    runtime.cudnn_dir.mkdir(parents=True)
    # below the runtime's home: a folder for temporary files may be too small for it
    with tempfile.TemporaryDirectory(dir=runtime.home) as directory:
        _pip(runtime, "download", "--no-deps", "--dest", directory, runtime.cudnn)
        for wheel in Path(directory).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in filter(_CUDNN_PART.search, archive.namelist()):
                    target = runtime.cudnn_dir / Path(name).name
                    with archive.open(name) as source, target.open("wb") as copy:
                        shutil.copyfileobj(source, copy)
    runtime.cudnn_stamp.write_text(runtime.cudnn)


def _install_packages(runtime: Runtime) -> None:
    _say(f"{runtime.name}: installing {', '.join(runtime.bare)} without NVIDIA's packages")
    venv.create(runtime.home / "venv", with_pip=True, clear=True)
    # what is left out on purpose would otherwise be told as an error
    install = ("install", "--no-warn-conflicts")
    _pip(runtime, *install, "--no-deps", *runtime.bare)
    _pip(runtime, *install, *runtime.full, *_OWN_NEEDS)
    with tempfile.TemporaryDirectory() as directory:
        _pip(runtime, "download", "--no-deps", "--dest", directory, *runtime.headers)
        for wheel in Path(directory).glob("*.whl"):
            _extract_headers(wheel, runtime.headers_dir)


def _extract_headers(wheel: Path, destination: Path) -> None:
    """Unpack the ``include`` folder of a wheel, wherever in it that is."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, below = name.partition("/include/")
            if found and below and not name.endswith("/"):
                target = destination / below
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def _pip(runtime: Runtime, *arguments: str) -> None:
    quiet = ("-P", "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([runtime.python, *quiet, *arguments], check=True)


def _digest(runtime: Runtime) -> str:
    told = repr((runtime.bare, runtime.full, runtime.headers, sys.version_info[:2]))
    return hashlib.sha256(told.encode()).hexdigest()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Set up the runtime that is named, or the default one."""
    parser = argparse.ArgumentParser(prog="python -m memgate_worker.runtimes.setup")
    parser.add_argument("name", nargs="?", default=DEFAULT_RUNTIME)
    parser.add_argument("--with-cudnn", action="store_true", help="also the real cuDNN, 0.8 GB")
    arguments = parser.parse_args()
    runtimes = read_runtimes()
    if arguments.name not in runtimes:
        mistake = unknown_name("runtime", arguments.name, runtimes, rule="there is no such runtime")
        raise InputError.from_mistakes(mistake)
    if problem := why_no_runtime_can_be_built():
        _say(problem)
        return
    try:
        set_up(runtimes[arguments.name])
        if arguments.with_cudnn:
            install_cudnn(runtimes[arguments.name])
    except (BuildError, FileNotFoundError, subprocess.CalledProcessError) as error:
        name = arguments.name
        sys.exit(f"runtime {name} was not built; everything but the phantom engine works: {error}")


if __name__ == "__main__":
    main()
