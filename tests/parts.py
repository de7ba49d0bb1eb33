"""Other people's programs that some tests and ``make load`` need: prometheus, promtool and wrk.

``python -m tests.parts`` (``make parts``; ``make test`` does it) takes them from Debian's packages,
unpacked below ``build/parts``: nothing is installed, and nobody needs to be root. Which version it
is, Debian says. Quick if they are there. Where there is no apt, or no network, the tests that need
a part are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HOME = Path(__file__).parents[1] / "build" / "parts"

#: packages, and the program that shows that they are there
_PACKAGES = {
    "prometheus": ("usr/bin/prometheus", "usr/bin/promtool"),
    "wrk": ("usr/bin/wrk",),
    "libluajit-5.1-2": (),  # for wrk
}


def find_part(program: str) -> Path | None:
    """Return where a program is: what is installed here comes first."""
    installed = shutil.which(program)
    path = Path(installed) if installed else _HOME / "usr" / "bin" / program
    return path if path.is_file() else None


def part_environment() -> dict[str, str]:
    """Return the environment that a part runs in: it finds its libraries."""
    libraries = sorted({str(path.parent) for path in _HOME.glob("usr/lib/**/*.so*")})
    known = os.environ.get("LD_LIBRARY_PATH")
    return os.environ | {"LD_LIBRARY_PATH": ":".join([*libraries, *([known] if known else [])])}


def install_parts() -> str | None:
    """Unpack what is missing; return why that could not be, None if all is there."""
    stamp = _HOME / "installed"
    wanted = " ".join(_PACKAGES)
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "there is no apt-get here: install prometheus and wrk by other means"
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
    return _run(["apt-get", *options, "--quiet", "download", *_PACKAGES], directory)


def _run(command: list[str], directory: Path) -> str | None:
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return None
    return f"{' '.join(command[:1])} failed: {(ran.stderr.strip().splitlines() or ['?'])[-1]}"


def main() -> None:
    """Install; what could not be is told, and is no failure: the tests say what they miss."""
    if problem := install_parts():
        sys.stderr.write(f"parts: {problem}; tests that need them are skipped\n")


if __name__ == "__main__":
    main()
