"""A job's own requirements file -> which torch it brings, and which packages are left out.

pip reads the file, whatever is in it, and chooses the versions; this module only reads pip's
report. Left out are NVIDIA's libraries, 3 GB, which our stand-ins replace, and Triton where nothing
but torch asks for it. pip has no option for that: it is shown placeholders, packages with a name, a
version and nothing in them, which it takes for installed (``install`` removes them afterwards).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from memgate.errors import InputError
from memgate.given_files import open_given_file
from memgate_worker.standins.cudnn import FIRST_VERSION as FIRST_CUDNN

#: what stand-ins are built for, and the newest that was tried
OLDEST_TORCH = (2, 3)
NEWEST_TORCH = (2, 14)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: NVIDIA's libraries, and the packages of Python that do nothing but bring or open them
_NVIDIAS = re.compile(
    r"nvidia-(cublas|cuda|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink"
    r"|nvshmem|nvtx|nvvm)(-.*)?|cuda-(bindings|pathfinder|toolkit)"
)
_TRITONS = re.compile(r"(pytorch-)?triton(-rocm|-xpu)?")

#: of a line of Requires-Dist: name, versions, conditions
_DEPENDENCY = re.compile(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_VERSION = re.compile(r"(==|~=|>=)\s*(\d[\w.+]*)")

#: a line that brings in another file; read to see whether a file changed, for nothing else
_OTHER_FILE = re.compile(r"^\s*(?:-[rc]|--requirement|--constraint)[\s=]*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """A requirements file, as it was when it was read."""

    path: Path
    #: of its text, and of the files that it names
    digest: str


def read_requirements(path: Path) -> Requirements:
    """Read what identifies a requirements file.

    Raises:
        InputError: if it cannot be read.
    """
    digest = hashlib.sha256()
    for text in _texts(path.resolve(), set()):
        digest.update(text.encode() + b"\0")
    return Requirements(path=path.resolve(), digest=digest.hexdigest())


def _texts(path: Path, seen: set[Path]) -> Iterator[str]:
    seen.add(path)
    try:
        with open_given_file(path, instead="write what it says into a file") as stream:
            text = stream.read().decode()
    except UnicodeDecodeError:
        raise InputError(f"--requirements {path} cannot be read: it is not text") from None
    except InputError as error:
        why = error.message.removeprefix(f"{path}: ")
        raise InputError(f"--requirements {path} cannot be read: {why}") from None
    yield text
    for named in _OTHER_FILE.findall(text):
        other = path.parent / named
        if other.exists() and other not in seen:  # if it is missing, pip says so
            yield from _texts(other, seen)


def name_for(path: Path, name: str | None) -> str:
    """Return the name of a runtime that is made from a file: as it is said, or the file's own.

    Raises:
        InputError: if it is not a name.
    """
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--name is {name!r}: a runtime's name has letters, digits, '.', '_' and '-', at most"
            " 64, and begins with a letter or a digit"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """What a package says that it needs."""

    name: str
    #: as it is written, such as ``==12.4.5.8``; empty: any
    versions: str

    @property
    def lowest(self) -> str:
        """A version that satisfies it: the one it pins, or else the lowest that it names."""
        found = dict(reversed(_VERSION.findall(self.versions)))
        return found.get("==") or found.get("~=") or found.get(">=") or "0"


def read_dependencies(lines: Sequence[str]) -> list[Dependency]:
    """Read lines of Requires-Dist; those of extras are left out."""
    matches = [match for line in lines if (match := _DEPENDENCY.match(line))]
    return [
        Dependency(name=canonical(match[1]), versions=match[2].strip())
        for match in matches
        if "extra" not in (match[3] or "")
    ]


def canonical(name: str) -> str:
    """Return the name of a package in the form that identifies it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What pip would install."""

    #: by canonical name
    versions: Mapping[str, str]
    needs: Mapping[str, Sequence[Dependency]]
    #: what the file itself names
    named: frozenset[str]

    @property
    def torch(self) -> str | None:
        """The version of torch; None if there is none."""
        return self.versions.get("torch")

    @property
    def is_settled(self) -> bool:
        """There is a torch, and no package may want another: the newest suits a lower bound."""
        pins = {f"torch=={self.torch}", f"torch=={(self.torch or '').partition('+')[0]}"}
        lower = re.compile(r"torch(>=?[\w.]+)?")
        return self.torch is not None and all(
            wanted in pins or lower.fullmatch(wanted) for wanted in self.wanted_torch
        )

    @property
    def wanted_torch(self) -> list[str]:
        """What packages ask of torch, each as a requirement."""
        wanted = {
            f"torch{need.versions.replace(' ', '')}"
            for needs in self.needs.values()
            for need in needs
            if need.name == "torch"
        }
        return sorted(wanted)

    def left_out(self) -> dict[str, Dependency]:
        """Return what need not be installed, by name, in versions that pip is content with."""
        wanted = {need.name: need for need in self.needs.get("torch", ())}
        wanted |= {
            name: Dependency(name=name, versions=f"=={version}")
            for name, version in self.versions.items()
            if _NVIDIAS.fullmatch(name)
        }
        return {
            name: need
            for name, need in wanted.items()
            if _NVIDIAS.fullmatch(name)
            or (_TRITONS.fullmatch(name) and not self._is_wanted_by_others(name))
        }

    def _is_wanted_by_others(self, name: str) -> bool:
        others = (needs for package, needs in self.needs.items() if package != "torch")
        return name in self.named or any(need.name == name for needs in others for need in needs)


def read_report(text: str) -> Chosen:
    """Read pip's report of what it would install."""
    found = [(canonical(item["metadata"]["name"]), item) for item in json.loads(text)["install"]]
    return Chosen(
        versions={name: item["metadata"]["version"] for name, item in found},
        needs={
            name: read_dependencies(item["metadata"].get("requires_dist") or [])
            for name, item in found
        },
        named=frozenset(name for name, item in found if item["requested"]),
    )


def check_torch(version: str | None, path: Path) -> str | None:
    """Return a warning if a torch is newer than any that was tried.

    Raises:
        InputError: if it is missing, too old, or not for CUDA.
    """
    oldest, newest = (".".join(map(str, known)) for known in (OLDEST_TORCH, NEWEST_TORCH))
    if version is None:
        raise InputError(
            f"{path} brings no torch, and a runtime is made for one: add a line such as"
            f" torch=={newest}.*; torch {oldest} to {newest} are known to work"
        )
    release, _, build = version.partition("+")
    number = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if build.startswith(("cpu", "rocm", "xpu")):
        raise InputError(
            f"{path} brings torch {version}, which is not built for CUDA, so a job with it uses no"
            " NVIDIA GPU; name the build that the job has on its GPU (no GPU is needed here)"
        )
    if number < OLDEST_TORCH:
        raise InputError(
            f"{path} brings torch {version}, and runtimes are made for torch {oldest} to {newest};"
            f" ask for torch>={oldest}"
        )
    if number <= NEWEST_TORCH:
        return None
    return (
        f"warning: torch {version} is newer than {newest}, the newest that memgate was tried with"
    )


def cudnn_of(needs: Sequence[Dependency]) -> str | None:
    """Return the package with the real cuDNN that a torch pins; None if it cannot be asked."""
    for need in needs:
        version = need.lowest
        if need.name.startswith("nvidia-cudnn-cu"):
            number = tuple(int(part) for part in version.split(".")[:2])
            return f"{need.name}=={version}" if number >= FIRST_CUDNN else None
    return None


def find_unwanted(
    left_out: Mapping[str, Dependency], installed: Sequence[Distribution]
) -> list[str]:
    """Return the placeholders, and what of NVIDIA's was installed for a torch not expected."""
    names = {canonical(package.name) for package in installed}
    return sorted(name for name in names if name in left_out or _NVIDIAS.fullmatch(name))


def needed_after_all(
    left_out: Mapping[str, Dependency], installed: Sequence[Distribution]
) -> list[Dependency]:
    """Return what was left out although a package besides torch needs it."""
    wanted = {
        need.name
        for package in installed
        if canonical(package.name) not in {"torch", *left_out}
        for need in read_dependencies(package.requires or [])
    }
    return [need for name, need in left_out.items() if _TRITONS.fullmatch(name) and name in wanted]


def write_placeholder(site_packages: Path, need: Dependency) -> None:
    """Write what pip takes for an installed package."""
    home = site_packages / f"{need.name.replace('-', '_')}-{need.lowest}.dist-info"
    home.mkdir()
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {need.name}\nVersion: {need.lowest}\n",
        "INSTALLER": "memgate\n",
    }
    for name, text in texts.items():
        (home / name).write_text(text)
    record = "".join(f"{home.name}/{name},,\n" for name in (*texts, "RECORD"))
    (home / "RECORD").write_text(record)
