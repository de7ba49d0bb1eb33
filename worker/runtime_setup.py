"""Builds a runtime: ``python -m worker.runtime_setup torch-2.14``, or ``make runtime``.

An environment with PyTorch's ordinary CUDA build but none of NVIDIA's packages, and the stand-ins
that make it run without them. Quick if nothing changed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from memgate.errors import InputError
from worker.engines.phantom.build import BuildError, build, build_tracker
from worker.runtime import DEFAULT_RUNTIME, Runtime, read_runtimes, why_no_runtime_can_be_built

_ROOT = Path(__file__).parents[1]

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


def _install_packages(runtime: Runtime) -> None:
    _say(f"{runtime.name}: installing {', '.join(runtime.bare)} without NVIDIA's packages")
    venv.create(runtime.home / "venv", with_pip=True, clear=True)
    _pip(runtime, "install", "--no-deps", *runtime.bare)
    _pip(runtime, "install", *runtime.full, *_OWN_NEEDS)
    (runtime.site_packages / "memgate.pth").write_text(f"{_ROOT}\n")
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
    quiet = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([runtime.python, *quiet, *arguments], check=True)


def _digest(runtime: Runtime) -> str:
    told = repr((runtime.bare, runtime.full, runtime.headers, sys.version_info[:2]))
    return hashlib.sha256(told.encode()).hexdigest()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Set up the runtime that is named, or the default one."""
    name = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_RUNTIME
    runtimes = read_runtimes()
    if name not in runtimes:
        raise InputError(f"runtime {name!r} is unknown; there are: {', '.join(runtimes)}")
    if problem := why_no_runtime_can_be_built():
        _say(problem)
        return
    try:
        set_up(runtimes[name])
    except (BuildError, FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"runtime {name} was not built; everything but the phantom engine works: {error}")


if __name__ == "__main__":
    main()
