"""A real kube-apiserver, built from Debian's own source package, for the tests of the webhooks.

``python -m tests.kube_apiserver`` (``make kube-apiserver``; ``make test-kubernetes`` does it) puts
it into ``build/kube-apiserver``; quick if it is there, else some ten minutes and 3 GB for a while.
Debian has it as source only, and in one version, 1.20: old, but it asks webhooks as newer ones do.
It needs root, once, for Debian's Go compiler and rsync.

The machine's own package sources are read, never changed: a copy of them that asks for source
packages is used instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HOME = Path(__file__).parents[1] / "build" / "kube-apiserver"

#: what ``find_apiserver`` finds
_PROGRAM = _HOME / "kube-apiserver"

#: programs that build it, by Debian's packages for them
_TOOLS = {"go": "golang-go", "rsync": "rsync", "dpkg-source": "dpkg-dev", "make": "make"}

#: a library in the source is too old for Debian's Go, and crashes: Debian's package of a newer one
_NEWER_LIBRARY = "golang-github-modern-go-reflect2-dev"
_LIBRARY = "github.com/modern-go/reflect2"

_SOURCES = Path("/etc/apt")


def find_apiserver() -> Path | None:
    """Return where the server is, None if it was not built."""
    return _PROGRAM if _PROGRAM.is_file() else None


def build_apiserver() -> Path:
    """Build the server unless it is there; return where it is.

    Raises:
        SystemExit: with the reason why it cannot be built here.
    """
    if _PROGRAM.is_file():
        return _PROGRAM
    if shutil.which("apt-get") is None:
        sys.exit("kube-apiserver is built from Debian's source package: there is no apt-get here")
    _install_tools()
    _HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_HOME) as name:
        directory = Path(name)
        _say("getting the source")
        _get_source(directory)
        _renew_library(directory)
        _say("building, some ten minutes")
        built = _compile(directory)
        # in one step: whoever looks meanwhile sees no half of it
        shutil.copy2(built, directory / "done")
        (directory / "done").replace(_PROGRAM)
    return _PROGRAM


def _install_tools() -> None:
    missing = [package for program, package in _TOOLS.items() if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0:
        sys.exit(f"building kube-apiserver needs {' '.join(missing)}: only root can install them")
    command = ["apt-get", "--quiet", "--yes", "--no-install-recommends", "install", *missing]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        _run(["apt-get", "--quiet", "update"], _SOURCES)
        _run(command, _SOURCES)


def _get_source(directory: Path) -> None:
    """Have apt get and check the source package, and unpack it into ``directory/source``."""
    parts, lists = directory / "parts", directory / "lists"
    parts.mkdir()
    (lists / "partial").mkdir(parents=True)
    for path in [_SOURCES / "sources.list", *(_SOURCES / "sources.list.d").glob("*")]:
        if path.suffix in {".list", ".sources"} and path.is_file():
            (parts / path.name).write_text(_asking_for_source(path.read_text()))
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": lists,
        # the folder is ours alone: apt's own user may not write to it
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    _run([*apt, "update"], directory)
    _run([*apt, "source", "--download-only", "kubernetes"], directory)
    (description,) = directory.glob("*.dsc")
    _run(["dpkg-source", "--extract", str(description), "source"], directory)


def _asking_for_source(text: str) -> str:
    """Turn package sources, in either of apt's two forms, into sources of source packages."""
    text = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
    return re.sub(r"^deb(-src)?(?=\s)", "deb-src", text, flags=re.MULTILINE)


def _renew_library(directory: Path) -> None:
    """Put Debian's newer library in the place of the one that came with the source."""
    _run(["apt-get", "--option=APT::Sandbox::User=root", "download", _NEWER_LIBRARY], directory)
    (package,) = directory.glob("*.deb")
    _run(["dpkg-deb", "--extract", package.name, "newer"], directory)
    vendored = directory / "source" / "vendor" / _LIBRARY
    shutil.rmtree(vendored)
    shutil.copytree(directory / "newer" / "usr" / "share" / "gocode" / "src" / _LIBRARY, vendored)


def _compile(directory: Path) -> Path:
    """Run the project's own build of this one program, out of the way of other work."""
    source = directory / "source"
    version = re.search(r"really([\d.]+)|_([\d.]+)", next(directory.glob("*.dsc")).name)
    assert version is not None
    environment = os.environ | {
        "GOCACHE": str(directory / "cache"),
        "GOFLAGS": "-mod=vendor",
        # there is no git history to read it from
        "KUBE_GIT_TREE_STATE": "clean",
        "KUBE_GIT_COMMIT": "debian",
        "KUBE_GIT_VERSION": f"v{version[1] or version[2]}",
    }
    _run(["nice", "make", "WHAT=cmd/kube-apiserver"], source, environment)
    return source / "_output" / "bin" / "kube-apiserver"


def _run(command: list[str], directory: Path, environment: dict[str, str] | None = None) -> None:
    """Run a step; its last words if it fails, nothing else."""
    ran = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        last = "\n".join(ran.stdout.splitlines()[-20:])
        sys.exit(f"{last}\nkube-apiserver: `{' '.join(command)}` failed")


def _say(text: str) -> None:
    sys.stderr.write(f"kube-apiserver: {text}\n")


if __name__ == "__main__":
    build_apiserver()
