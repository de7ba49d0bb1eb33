"""The definition of a runtime -> the environment with its libraries, whole or not at all.

Versions that a runtime file names are installed without what they depend on, which is NVIDIA's
libraries. What a requirements file asks for is chosen and installed by pip as for the job itself,
with placeholders in place of those libraries (``requirements``). What memgate needs on top goes to
a folder of its own, and never changes a version that the job has.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

from memgate.errors import InputError
from memgate.units import format_size
from memgate_worker.runtimes import requirements as reading
from memgate_worker.runtimes.contents import disk_bytes
from memgate_worker.runtimes.locks import unused
from memgate_worker.runtimes.pip import Pip
from memgate_worker.runtimes.requirements import Chosen, Requirements
from memgate_worker.runtimes.runtime import OWN_NEEDS, Runtime
from memgate_worker.standins.compiler import find_compiler
from memgate_worker.standins.torch_build import read_torch_build

#: told what is being done
Report = Callable[[str], None]

#: what a runtime takes whose file does not say: torch, what it comes in, the usual libraries
USUAL_BYTES = 3_000_000_000

#: what is left out on purpose would otherwise be reported as an error
INSTALL = ("install", "--no-warn-conflicts")

_DEFINITION = """\
# Made by: memgate runtimes install --requirements; memgate runtimes remove removes it.
description = {description}
requirements = {path}
requirements_digest = {digest}
disk_bytes = {disk_bytes}
{cudnn}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlace:
    """A runtime that this process alone works on."""

    runtime: Runtime
    report: Report
    #: descriptor of the lock
    lock: int

    def pip(self, *arguments: str | Path) -> None:
        """Run the pip of the runtime."""
        self.pip_of(self.runtime.venv, self.runtime.home)(*arguments)

    def pip_of(self, environment: Path, scratch: Path) -> Pip:
        """Return the pip of an environment."""
        return Pip(python=environment / "bin" / "python", scratch=scratch, lock=self.lock)

    @contextmanager
    def constrained(self, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the arguments with which pip keeps to these versions."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=self.runtime.home) as same:
            same.writelines(f"{line}\n" for line in lines)
            same.flush()
            yield ("--constraint", same.name)

    def write_stamp(self, stamp: Path, text: str) -> None:
        """Write a stamp completely, or not at all."""
        fresh = stamp.with_name(stamp.name + ".new")
        fresh.write_text(text)
        fresh.rename(stamp)


def make_environment(place: InstallPlace, *, with_cudnn: bool) -> Runtime:
    """Install the libraries of a runtime; return it as it is then described.

    Raises:
        InputError: if its requirements file cannot make a runtime.
        OperatorError: if there are libraries already, and they are in use.
    """
    find_compiler()  # which will be needed
    if place.runtime.requirements is not None:
        return _make_from_requirements(place, place.runtime.requirements, with_cudnn=with_cudnn)
    runtime = place.runtime
    _check_for_space(runtime)
    with _whole(place):
        place.report(f"installing {', '.join(runtime.bare)}, without NVIDIA's packages")
        venv.create(runtime.venv, with_pip=True, clear=True)
        place.pip(*INSTALL, "--no-deps", *runtime.bare)
        place.report("installing what they need")
        place.pip(*INSTALL, *runtime.full)
        _install_own_needs(place)
    return runtime


def _make_from_requirements(
    place: InstallPlace, said: Requirements, *, with_cudnn: bool
) -> Runtime:
    # 1. Which torch is it? Nothing that is there is touched before that is known.
    said = reading.read_requirements(said.path)
    runtime = replace(place.runtime, requirements=said)
    place = replace(place, runtime=runtime)
    place.report(f"asking pip what {said.path} brings")
    chosen = _choose(place, said.path)
    if warning := reading.check_torch(chosen.torch, said.path):
        place.report(warning)
    if with_cudnn and reading.cudnn_of(chosen.needs["torch"]) is None:
        raise InputError(
            f"torch {chosen.torch} pins no cuDNN that can plan for a GPU that is not there (9.8 and"
            " later can); install the runtime without --with-cudnn"
        )
    _check_for_space(runtime)

    # 2. Install all of it but NVIDIA's libraries.
    is_new = not (runtime.home / "venv").exists()
    with _whole(place), _forgotten_if(is_new, runtime):
        _write_definition(runtime)
        place.report(f"installing torch {chosen.torch} and the rest, without NVIDIA's packages")
        venv.create(runtime.venv, with_pip=True, clear=True)
        _install_chosen(place, said.path, chosen)
        _install_own_needs(place)

        # 3. What it has become: pip may have chosen another torch for the sake of a library.
        (torch,) = distributions(name="torch", path=[str(runtime.site_packages)])
        reading.check_torch(torch.version, said.path)
        build = read_torch_build(runtime.site_packages / "torch")
        runtime = replace(
            runtime,
            description=f"torch {build.version}, CUDA {build.cuda_text}",
            cudnn=reading.cudnn_of(reading.read_dependencies(torch.requires or [])),
        )
        _write_definition(runtime)
    return runtime


def _choose(place: InstallPlace, path: Path) -> Chosen:
    """Ask pip what a requirements file brings, in an environment that is thrown away."""
    parent = place.runtime.home.parent
    with tempfile.TemporaryDirectory(prefix=f".{place.runtime.name}.", dir=parent) as name:
        scratch = Path(name)
        venv.create(scratch / "venv", with_pip=True)
        pip = place.pip_of(scratch / "venv", scratch)
        report = scratch / "report.json"

        def ask(*options: str) -> Chosen:
            asked = ("--dry-run", "--ignore-installed", "--report", str(report), *options)
            pip("install", *asked, "--requirement", path)
            return reading.read_report(report.read_text())

        # Some indexes have to be asked for whole packages, 3 GB if it is those that torch depends
        # on. So the file's own packages come first, then the torch that suits them; all of it only
        # if torch comes from further away.
        chosen = ask("--no-deps")
        if chosen.wanted_torch and not chosen.is_settled:
            chosen = ask("--no-deps", *chosen.wanted_torch)
        return chosen if chosen.torch is not None else ask()


def _install_chosen(place: InstallPlace, path: Path, chosen: Chosen) -> None:
    left_out = chosen.left_out()
    site_packages = place.runtime.site_packages
    for need in left_out.values():
        reading.write_placeholder(site_packages, need)
    place.pip(*INSTALL, "--requirement", path)
    # both are read before anything is removed: what is listed here is read from disk when asked
    installed = list(distributions(path=[str(site_packages)]))
    unwanted = reading.find_unwanted(left_out, installed)
    needed = reading.needed_after_all(left_out, installed)
    if unwanted:
        place.pip("uninstall", "--yes", *unwanted)
    for need in needed:
        place.pip(*INSTALL, "--no-deps", f"{need.name}{need.versions}")


def _install_own_needs(place: InstallPlace) -> None:
    """Install what memgate needs and the libraries lack, where jobs do not see it.

    Raises:
        InputError: if a library is there in a version that memgate cannot use.
    """
    runtime = place.runtime
    shutil.rmtree(runtime.own, ignore_errors=True)
    missing = runtime.missing_needs
    installed = installed_versions(runtime)
    for name in missing:
        if name in installed:
            wanted = ".".join(map(str, OWN_NEEDS[name]))
            raise InputError(
                f"runtime {runtime.name!r} was not installed: it would have {name}"
                f" {installed[name]}, and memgate's part in it needs {wanted} or later; ask for"
                f" that, or run the job in its own environment: memgate run -- COMMAND"
            )
    if not missing:
        return
    place.report(f"installing what memgate needs beside them: {', '.join(missing)}")
    with place.constrained(f"{name}=={version}" for name, version in installed.items()) as same:
        place.pip(*INSTALL, "--target", runtime.own, *same, *missing)


def installed_versions(runtime: Runtime) -> dict[str, str]:
    """Return the version of each package in the environment of a runtime, by canonical name."""
    return {
        reading.canonical(package.name): package.version
        for package in distributions(path=[str(runtime.site_packages)])
    }


@contextmanager
def _whole(place: InstallPlace) -> Iterator[None]:
    """Make the environment in place, since it cannot be moved; what fails leaves none."""
    runtime = place.runtime
    is_there = runtime.venv.exists()
    with unused(runtime, "was not changed") if is_there else nullcontext():
        runtime.packages_stamp.unlink(missing_ok=True)
        for stale in runtime.home.glob("stand-ins-*"):  # of the torch that is replaced
            shutil.rmtree(stale)
        runtime.home.mkdir(parents=True, exist_ok=True)
        try:
            yield
        except BaseException:
            shutil.rmtree(runtime.venv, ignore_errors=True)  # it is large
            raise
        digest = runtime.definition_digest(sys.version_info[:2])
        place.write_stamp(runtime.packages_stamp, digest)


@contextmanager
def _forgotten_if(is_new: bool, runtime: Runtime) -> Iterator[None]:
    """Leave no trace of a runtime that never was."""
    try:
        yield
    except BaseException:
        if is_new:
            shutil.rmtree(runtime.home, ignore_errors=True)
            runtime.definition.unlink(missing_ok=True)
        raise


def _write_definition(runtime: Runtime) -> None:
    """Write the runtime file."""
    assert runtime.requirements is not None
    text = _DEFINITION.format(
        description=_quote(runtime.description),
        path=_quote(str(runtime.requirements.path)),
        digest=_quote(runtime.requirements.digest),
        disk_bytes=runtime.disk_bytes,
        cudnn=f"cudnn = {_quote(runtime.cudnn)}\n" if runtime.cudnn else "",
    )
    runtime.definition.write_text(text)


def _quote(text: str) -> str:
    """Write a string of TOML, which one of JSON is."""
    return json.dumps(text, ensure_ascii=False)


def _check_for_space(runtime: Runtime) -> None:
    runtime.home.parent.mkdir(parents=True, exist_ok=True)
    # what is there will be replaced
    free = shutil.disk_usage(runtime.home.parent).free
    if free + disk_bytes(runtime) < runtime.disk_bytes:
        raise no_space(runtime, runtime.disk_bytes, free)


def no_space(runtime: Runtime, needed: int, free: int) -> OSError:
    """Say that something does not fit on the disk."""
    return OSError(
        f"it takes {format_size(needed)}, and {runtime.home.parent} has {format_size(free)} free;"
        " make room, or set MEMGATE_RUNTIMES_DIR to another folder"
    )
