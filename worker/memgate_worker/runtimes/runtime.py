"""Runtimes: the library versions that jobs run with, each an environment of its own.

A runtime is a small file in this folder and what ``setup`` builds from it: a slim virtual
environment, and our stand-ins for NVIDIA's libraries, compiled for the torch in it. This module
knows names and places.
"""

from __future__ import annotations

import os
import platform
import tomllib
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from memgate.errors import InputError, RuntimeMissingError
from memgate.gpus import GpuSpec
from memgate.mistakes import unknown_name

_DEFINITIONS = Path(__file__).parent

#: the folder that holds the runtimes of this machine
_HOME_VARIABLE = "MEMGATE_RUNTIMES_DIR"

#: used unless a job names another
DEFAULT_RUNTIME = "torch-2.14"


#: what our stand-ins can be built for, as ``platform`` calls it
_PLATFORM = ("Linux", "x86_64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a runtime file says, and where it is built."""

    name: str
    description: str
    bare: tuple[str, ...]
    full: tuple[str, ...]
    headers: tuple[str, ...]
    #: the package with the real cuDNN, which can be installed on top
    cudnn: str | None
    home: Path

    @property
    def python(self) -> Path:
        """The interpreter that sees this runtime's libraries."""
        return self.home / "venv" / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        return next((self.home / "venv" / "lib").glob("python3.*/site-packages"))

    @property
    def stubs(self) -> Path:
        """Our stand-ins for NVIDIA's libraries."""
        return self.home / "stubs"

    @property
    def headers_dir(self) -> Path:
        """Headers of the CUDA runtime, needed while building only."""
        return self.home / "headers"

    @property
    def cudnn_dir(self) -> Path:
        """The real cuDNN, an extra: it knows the workspaces of convolutions."""
        return self.home / "cudnn"

    @property
    def cudnn_stamp(self) -> Path:
        """There once the real cuDNN is, and says which one."""
        return self.cudnn_dir / "installed"

    @property
    def has_cudnn(self) -> bool:
        """The real cuDNN is installed, in the version that the runtime file names."""
        return self.cudnn_stamp.is_file() and self.cudnn_stamp.read_text() == self.cudnn

    @property
    def stamp(self) -> Path:
        """There once everything is built."""
        return self.home / "built"

    @property
    def is_installed(self) -> bool:
        """The runtime can be used."""
        return self.stamp.is_file()


def default_home() -> Path:
    """Return where runtimes are: as the operator says, in a checkout, or with the user's data."""
    if said := os.environ.get(_HOME_VARIABLE):
        return Path(said)
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "Makefile").is_file():
        return checkout / ".runtimes"
    return platformdirs.user_data_path("memgate") / "runtimes"


def read_runtimes(home: Path | None = None) -> dict[str, Runtime]:
    """Return all runtimes there are files for, built or not."""
    home = home or default_home()
    return {
        path.stem: _read(path, home / path.stem) for path in sorted(_DEFINITIONS.glob("*.toml"))
    }


def find_runtime(name: str | None, home: Path | None = None) -> Runtime:
    """Return a runtime that is built.

    Raises:
        InputError: if there is no runtime of this name, with the names there are.
        RuntimeMissingError: if it is not built, with the command that builds it, or cannot be.
    """
    runtimes = read_runtimes(home)
    wanted = name or DEFAULT_RUNTIME
    if wanted not in runtimes:
        mistake = unknown_name("runtime", wanted, runtimes, rule="there is no such runtime")
        raise InputError.from_mistakes(mistake)
    if problem := why_no_runtime_can_be_built():
        raise RuntimeMissingError(problem)
    if not runtimes[wanted].is_installed:
        raise RuntimeMissingError(
            f"runtime {wanted!r} is not installed; install it with: {install_command(wanted)}"
        )
    return runtimes[wanted]


def install_command(name: str, *, with_cudnn: bool = False) -> str:
    """Return the command that installs a runtime, or installs it again."""
    return f"memgate runtimes install {name}{' --with-cudnn' if with_cudnn else ''}"


def why_no_runtime_can_be_built() -> str | None:
    """Tell what is in the way on this machine, if anything is."""
    here = (platform.system(), platform.machine())
    if here == _PLATFORM:
        return None
    return (
        f"running jobs needs {' on '.join(_PLATFORM)}, and this is {' on '.join(here)}; every other"
        " part of memgate works here: memgate analyze takes what torch.profiler saw of a job"
    )


def why_no_kernels(runtime: Runtime, gpu: GpuSpec) -> str:
    """Say why a job would fail on a GPU, and what to do."""
    capability = ".".join(map(str, gpu.compute_capability))
    others = ", ".join(name for name in read_runtimes() if name != runtime.name)
    return (
        f"the PyTorch of runtime {runtime.name} has no kernels for GPUs of compute capability"
        f" {capability}: there, the job would die of 'no kernel image is available for execution on"
        f" the device'; run it with another runtime ({others}), or on another GPU"
    )


def _read(path: Path, home: Path) -> Runtime:
    fields = tomllib.loads(path.read_text())
    return Runtime(
        name=path.stem,
        description=fields["description"],
        bare=tuple(fields["bare"]),
        full=tuple(fields["full"]),
        headers=tuple(fields["headers"]),
        cudnn=fields.get("cudnn"),
        home=home,
    )
