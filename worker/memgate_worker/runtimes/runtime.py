"""Runtimes: the library versions that jobs run with, each in its own environment.

A runtime is a small file, in this folder or the operator's, and what ``install`` makes from it: a
slim virtual environment, and our stand-ins for NVIDIA's libraries, compiled for the torch in it.
The file names versions, or a job's own requirements file (then ``install`` wrote it). This module
knows names, places, and what is installed.

In the home of a runtime::

    venv/              the libraries, without NVIDIA's packages
    venv/extras/NAME   says which extra was added to them, and with which versions
    own/               what memgate needs and venv/ lacks; jobs do not see it
    packages           digest of the definition that venv/ was made from, written last
    stand-ins-DIGEST/  the stand-ins, one folder for each version of their sources
    cudnn/             the real cuDNN, an extra

Versions of memgate that differ in their stand-ins share a home: an upgrade adds a folder of 1.3 MB,
and a worker that still runs the old version keeps its own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tomllib
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import platformdirs

from memgate.errors import InputError, OperatorError, RuntimeMissingError
from memgate.gpus import GpuSpec
from memgate.mistakes import unknown_name
from memgate_worker.runtimes.extras import Extra, read_extras
from memgate_worker.runtimes.requirements import Requirements
from memgate_worker.standins.build import STAMP_NAME, sources_digest

_DEFINITIONS = Path(__file__).parent

#: the folder that holds the runtimes of this machine
_HOME_VARIABLE = "MEMGATE_RUNTIMES_DIR"

#: used unless a job names another
DEFAULT_RUNTIME = "torch-2.14"


#: what memgate itself needs in a process of a runtime, and since which version it works
OWN_NEEDS = {"msgspec": (0, 18), "psutil": (5, 9), "pydantic": (2, 6)}

#: what our stand-ins can be built for, as ``platform`` calls it
_PLATFORM = ("Linux", "x86_64")


class RuntimeState(StrEnum):
    """The state of a runtime on this machine."""

    INSTALLED = "installed"
    """It can be used."""
    ABSENT = "absent"
    UNFINISHED = "unfinished"
    """An installation was interrupted, or the Python that it was made with is gone."""
    OUTDATED = "outdated"
    """It was installed by a version of memgate with other libraries or other stand-ins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a runtime file says, and where it is installed."""

    name: str
    description: str
    bare: tuple[str, ...]
    full: tuple[str, ...]
    #: the package with the real cuDNN, which can be installed on top
    cudnn: str | None
    home: Path
    #: about how much space it takes; 0 if its file does not say
    disk_bytes: int = 0
    #: what it was made from, instead of ``bare`` and ``full``
    requirements: Requirements | None = None
    #: what can be added by name
    extras: tuple[Extra, ...] = ()

    @property
    def definition(self) -> Path:
        """The operator's file, or the one that ``install`` writes; ours are elsewhere."""
        return self.home.with_name(f"{self.name}.toml")

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        if self.requirements is not None:
            return str(self.requirements.path)
        return str(self.definition) if self.definition.is_file() else "memgate"

    @property
    def venv(self) -> Path:
        """The environment with its libraries."""
        return self.home / "venv"

    @property
    def python(self) -> Path:
        """The interpreter that sees this runtime's libraries."""
        return self.venv / "bin" / "python"

    @property
    def interpreter_home(self) -> Path:
        """Where the Python is installed that its environment was made with."""
        settings = self.venv / "pyvenv.cfg"
        said = settings.read_text() if settings.is_file() else ""
        found = re.search(r"^home\s*=\s*(\S.*)$", said, re.MULTILINE)
        return Path(found[1]).parent if found else self.python.resolve().parents[1]

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        return next((self.venv / "lib").glob("python3.*/site-packages"))

    @property
    def own(self) -> Path:
        """What memgate needs and the environment lacks; only our own processes look here."""
        return self.home / "own"

    @property
    def stubs(self) -> Path:
        """Our stand-ins for NVIDIA's libraries, as this version of memgate builds them."""
        return self.home / f"stand-ins-{sources_digest()[:12]}"

    @property
    def cudnn_dir(self) -> Path:
        """The real cuDNN, an extra: it knows the workspaces of convolutions."""
        return self.home / "cudnn"

    @property
    def cudnn_stamp(self) -> Path:
        """Exists once the real cuDNN is installed, and says which one."""
        return self.cudnn_dir / "installed"

    @property
    def has_cudnn(self) -> bool:
        """The real cuDNN is installed, in the version that the runtime file names."""
        return self.cudnn_stamp.is_file() and self.cudnn_stamp.read_text() == self.cudnn

    @property
    def extras_dir(self) -> Path:
        """Has a file for each extra that is there; it goes when the environment is made again."""
        return self.venv / "extras"

    def has_extra(self, extra: Extra) -> bool:
        """Say whether an extra is installed, as the runtime file describes it."""
        stamp = self.extras_dir / extra.name
        return stamp.is_file() and stamp.read_text().startswith(extra.digest)

    @property
    def packages_stamp(self) -> Path:
        """Exists once all libraries are installed, and says from which definition."""
        return self.home / "packages"

    @property
    def missing_needs(self) -> tuple[str, ...]:
        """What memgate needs in a process of the runtime and is missing, or too old."""
        places = [str(self.site_packages), str(self.own)]
        found = {
            name: next(iter(distributions(name=name, path=places)), None) for name in OWN_NEEDS
        }
        return tuple(
            name
            for name, package in found.items()
            if package is None or _number(package.version) < OWN_NEEDS[name]
        )

    @property
    def state(self) -> RuntimeState:
        """Its state on this machine."""
        if not os.path.exists(self.venv):  # a home that may not be searched has none; no error
            return RuntimeState.ABSENT
        if not (self.packages_stamp.is_file() and self.python.exists()):
            return RuntimeState.UNFINISHED
        if not (self.has_libraries and self.has_stand_ins):
            return RuntimeState.OUTDATED
        return RuntimeState.INSTALLED

    @property
    def has_libraries(self) -> bool:
        """Everything but the stand-ins is there, as the definition says."""
        if not (self.packages_stamp.is_file() and self.python.exists()):
            return False
        version = re.fullmatch(r"python3\.(\d+)", self.site_packages.parent.name)
        assert version is not None
        digest = self.definition_digest((3, int(version[1])))
        return self.packages_stamp.read_text() == digest and not self.missing_needs

    @property
    def has_stand_ins(self) -> bool:
        """The stand-ins of this version of memgate are there."""
        return (self.stubs / STAMP_NAME).is_file()

    def definition_digest(self, python: tuple[int, int]) -> str:
        """Digest what decides which libraries are installed, for a Python version."""
        if self.requirements is not None:
            said = repr((self.requirements.digest, python))
        else:
            said = repr((self.bare, self.full, python))
        return hashlib.sha256(said.encode()).hexdigest()

    @property
    def is_installed(self) -> bool:
        """The runtime can be used."""
        return self.state is RuntimeState.INSTALLED


def default_home() -> Path:
    """Return where runtimes are: as the operator says, in a checkout, or in the user's data."""
    if said := os.environ.get(_HOME_VARIABLE):
        return Path(said)
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "Makefile").is_file():
        return checkout / ".runtimes"
    return platformdirs.user_data_path("memgate") / "runtimes"


def read_runtimes(home: Path | None = None) -> dict[str, Runtime]:
    """Return all runtimes that have a file, installed or not: ours and the operator's.

    Raises:
        OperatorError: if one of the operator's files is wrong, or has the name of one of ours.
    """
    home = home or default_home()
    ours = sorted(_DEFINITIONS.glob("*.toml"))
    # Unlike those of Path, this is False where the home may not be searched: another user's.
    theirs = sorted(home.glob("*.toml")) if os.path.isdir(home) else []
    for path in theirs:
        if (_DEFINITIONS / path.name).exists():
            raise OperatorError(f"{path}: memgate has a runtime of this name; rename the file")
    return {path.stem: _read(path, home / path.stem) for path in (*ours, *theirs)}


def named_runtime(name: str | None, home: Path | None = None) -> Runtime:
    """Return a runtime, installed or not; without a name, the default one.

    Raises:
        InputError: if there is no runtime of this name, with the known names.
    """
    runtimes = read_runtimes(home)
    wanted = name or DEFAULT_RUNTIME
    if wanted not in runtimes:
        mistake = unknown_name("runtime", wanted, runtimes, rule="there is no such runtime")
        raise InputError.from_mistakes(mistake)
    return runtimes[wanted]


def plan_runtime(name: str, requirements: Requirements, home: Path | None = None) -> Runtime:
    """Return the runtime that a requirements file makes; installed already, or to be.

    Raises:
        InputError: if there is another runtime of this name.
    """
    home = home or default_home()
    known = read_runtimes(home).get(name)
    if known is None:
        return Runtime(
            name=name,
            description=f"from {requirements.path.name}",
            bare=(),
            full=(),
            cudnn=None,
            home=home / name,
            requirements=requirements,
        )
    made_from = known.requirements
    if made_from is not None and made_from.digest == requirements.digest:
        return known
    if made_from is not None and made_from.path == requirements.path:
        return replace(known, requirements=requirements)
    raise InputError(
        f"the name {name!r} is taken: that runtime comes from {known.origin}; choose another with"
        " --name"
    )


def find_runtime(name: str | None, home: Path | None = None) -> Runtime:
    """Return a runtime that is installed.

    Raises:
        InputError: if there is no runtime of this name, with the known names.
        RuntimeMissingError: if it is not installed, with the command that installs it, or if none
            can be on this machine.
    """
    runtime = named_runtime(name, home)
    if problem := why_no_runtime_can_be_built():
        raise RuntimeMissingError(problem)
    if problem := why_not_usable(runtime):
        raise RuntimeMissingError(problem)
    return runtime


def why_not_usable(runtime: Runtime) -> str | None:
    """Say what is wrong with a runtime on this machine and how to fix it; None if nothing is."""
    said, mend = {
        RuntimeState.INSTALLED: ("", ""),
        RuntimeState.ABSENT: ("is not installed", "install it"),
        RuntimeState.UNFINISHED: ("is not installed completely", "install it again"),
        RuntimeState.OUTDATED: (
            "was installed by another version of memgate",
            "bring it up to date",
        ),
    }[runtime.state]
    if not said:
        return None
    return f"runtime {runtime.name!r} {said}; {mend} with: {install_command(runtime.name)}"


def install_command(name: str, *, with_cudnn: bool = False, extra: str | None = None) -> str:
    """Return the command that installs a runtime, or installs it again, or adds to it."""
    added = f" --with {extra}" if extra else ""
    return f"memgate runtimes install {name}{' --with-cudnn' if with_cudnn else ''}{added}"


def why_no_runtime_can_be_built() -> str | None:
    """Say what prevents running jobs on this machine, if anything does."""
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


def _number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _read(path: Path, home: Path) -> Runtime:
    try:
        fields = tomllib.loads(path.read_text())
        requirements = _read_requirements(fields)
        if requirements is not None:
            fields = {"bare": (), "full": ()} | fields
        needed = {name: fields[name] for name in ("description", "bare", "full")}
        extras = read_extras(fields.get("extras", {}))
    except (OSError, ValueError) as error:  # among them, what is not TOML
        raise OperatorError(f"{path}: not a runtime file: {error}") from None
    except KeyError as error:
        raise OperatorError(f"{path}: a runtime file must say {error.args[0]!r}") from None
    return Runtime(
        name=path.stem,
        description=needed["description"],
        bare=tuple(needed["bare"]),
        full=tuple(needed["full"]),
        cudnn=fields.get("cudnn"),
        disk_bytes=fields.get("disk_bytes", 0),
        home=home,
        requirements=requirements,
        extras=extras,
    )


def _read_requirements(fields: dict[str, Any]) -> Requirements | None:
    if "requirements" not in fields:
        return None
    return Requirements(path=Path(fields["requirements"]), digest=fields["requirements_digest"])
