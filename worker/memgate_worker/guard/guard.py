"""Turns a command into one that cannot change files, with the environment it needs for that.

What the job changes goes into a scratch directory and is seen by the job alone. Three ways:

1. overlay: the launcher makes an overlay of every directory, in namespaces of its own;
2. preload: a library in front of libc redirects what the job does with files, and Landlock and a
   filter of system calls make fail what does not go through it;
3. none: files are not protected; the caller must have been told to allow that.

In all of them the library hides GPUs, hands our settings on to whatever the job starts, and stops a
process that loads torch without the hook. The native side is in `native/`. This module does not run
the command, and does not decide what happens if there is no protection.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from memgate_worker.guard.build import GuardFiles

#: what a process ends with that loads torch without the hook; see `native/loading.c`
HOOK_MISSING_STATUS = 86
#: what the launcher ends with if it cannot protect files or start the command
LAUNCHER_FAILED_STATUS = 87
#: in the run directory: a line of JSON per process that was stopped
PROBLEMS_NAME = "problems"
#: every process of a run has this variable: where it reports to
RUN_DIR = "MEMGATE_RUN_DIR"

_PROBE_TIMEOUT_S = 30
_USUAL_PARENT = Path("/var/tmp")
#: mode of a directory in which nothing was changed; see `native/guard.h`
_UNCHANGED_MODE = 0o5700


class Protection(StrEnum):
    """How files are kept as they are."""

    OVERLAY = "overlay"
    PRELOAD = "preload"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best protection that works here."""

    protection: Protection
    refusals: tuple[str, ...]
    """Why each better one does not work, in the launcher's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What is put around one command."""

    files: GuardFiles
    protection: Protection
    scratch: Path
    """Takes what the job changes; made by `make_scratch`."""
    writable: tuple[Path, ...] = ()
    """Existing directories that the job shares with us: the run directory, for instance."""
    run_dir: Path | None = None
    """Where processes that were stopped are reported."""
    hook_dir: Path | None = None
    """A directory for PYTHONPATH; if given, torch is not loaded without the hook."""
    standins_dirs: tuple[Path, ...] = ()
    """The only places from which libcuda is loaded."""
    preload: tuple[Path, ...] = ()
    """Further libraries to be loaded into each process, after the guard's own."""
    covers: Mapping[Path, Path] = field(default_factory=dict)
    """What the job sees in the place of a file or a directory; by an overlay only."""
    use_landlock: bool = True
    """False: as on a kernel that has none."""

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with ours added; a user's own lists stay, behind ours."""
        preload = [str(self.files.library), *map(str, self.preload)]
        ours = {
            "MEMGATE_GUARD_WAY": self.protection.value,
            "MEMGATE_GUARD_PRELOAD": ":".join(preload),
            "MEMGATE_GUARD_START_NS": str(time.time_ns()),
        }
        if self.protection is Protection.PRELOAD:
            ours["MEMGATE_GUARD_SCRATCH"] = str(self.scratch.resolve())
            ours["MEMGATE_GUARD_WRITABLE"] = ":".join(map(str, self._writable()))
        for name, path in (
            (RUN_DIR, self.run_dir),
            ("MEMGATE_HOOK_DIR", self.hook_dir),
        ):
            if path is not None:
                ours[name] = str(path.resolve())
        if self.standins_dirs:
            places = [str(path.resolve()) for path in self.standins_dirs]
            ours["MEMGATE_STANDINS_DIR"] = ":".join(places)
        result = {**environment, **ours}
        result["LD_PRELOAD"] = _put_first(preload, environment.get("LD_PRELOAD", ""))
        if self.hook_dir is not None:
            result["PYTHONPATH"] = _put_first(
                [ours["MEMGATE_HOOK_DIR"]], environment.get("PYTHONPATH", "")
            )
        return result

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that starts `command` behind the guard."""
        writable = [word for path in self._writable() for word in ("--writable", str(path))]
        scratch = ["--scratch", str(self.scratch.resolve())]
        launcher = [str(self.files.launcher), f"--{self.protection.value}"]
        landlock = [] if self.use_landlock else ["--without-landlock"]
        return [*launcher, *scratch, *writable, *self._covers(), *landlock, "--", *command]

    def _covers(self) -> list[str]:
        words = []
        for path, other in self.covers.items():
            words += ["--cover", str(path.resolve()), str(other.resolve())]
        return words

    def _writable(self) -> list[Path]:
        paths = [*self.writable, *([self.run_dir] if self.run_dir else [])]
        return list(dict.fromkeys(path.resolve() for path in paths))


def _put_first(ours: Sequence[str], theirs: str) -> str:
    return ":".join([*ours, *([theirs] if theirs else [])])


def make_scratch(parent: Path | None = None) -> Path:
    """Make a scratch directory.

    Args:
        parent: an existing directory on a disk with room for what the job writes. By default
            /var/tmp: the kernel makes no overlay of the directory above the scratch directory as a
            whole, and jobs seldom work there. Where it cannot be written: what TMPDIR names.
    """
    if parent is None:
        parent = _USUAL_PARENT if _can_be_written(_USUAL_PARENT) else Path(tempfile.gettempdir())
    scratch = Path(tempfile.mkdtemp(prefix="memgate-scratch-", dir=parent)).resolve()
    prepare_scratch(scratch)
    return scratch


def _can_be_written(directory: Path) -> bool:
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def prepare_scratch(scratch: Path) -> None:
    """Make an empty directory a scratch directory."""
    (scratch / "work").mkdir()
    (scratch / "files").mkdir()
    (scratch / "files").chmod(_UNCHANGED_MODE)


def remove_scratch(scratch: Path) -> None:
    """Remove a scratch directory, whatever modes the job and the kernel gave to what is in it."""
    for _ in range(2):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return
        _open_directories(scratch)
    shutil.rmtree(scratch)


def _open_directories(directory: Path) -> None:
    directory.chmod(0o700)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            _open_directories(path)


def choose_protection(
    files: GuardFiles,
    scratch_parent: Path | None = None,
    among: Sequence[Protection] = (Protection.OVERLAY, Protection.PRELOAD),
) -> Choice:
    """Try the ways to protect files, best first, by deleting a file of our own behind each.

    Args:
        files: the guard's programs.
        scratch_parent: where the job's scratch directory will be: not every file system will do.
        among: the ways to try.
    """
    refusals: list[str] = []
    for protection in among:
        refusal = _try_protection(files, scratch_parent, protection)
        if refusal is None:
            return Choice(protection=protection, refusals=tuple(refusals))
        refusals.append(f"{protection.value}: {refusal}")
    return Choice(protection=Protection.NONE, refusals=tuple(refusals))


def _try_protection(
    files: GuardFiles, scratch_parent: Path | None, protection: Protection
) -> str | None:
    """Return why this way does not work, None if it does."""
    scratch = make_scratch(scratch_parent)
    try:
        with tempfile.TemporaryDirectory(prefix="memgate-probe-") as name:
            return _probe(
                Guard(files=files, protection=protection, scratch=scratch), Path(name).resolve()
            )
    finally:
        remove_scratch(scratch)


def _probe(guard: Guard, directory: Path) -> str | None:
    file = directory / "file"
    file.write_text("here before\n")
    command = ["/bin/sh", "-c", 'rm "$1" && test ! -e "$1" && echo new > "$1"', "sh", str(file)]
    result = subprocess.run(
        guard.command(command),
        env=guard.environment({"PATH": "/usr/bin:/bin", "LC_ALL": "C"}),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        return result.stderr.strip() or f"the probe ended with status {result.returncode}"
    if file.read_text() != "here before\n":
        return "a file was changed that was there before"
    return None
