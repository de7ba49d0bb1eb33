"""Runs programs behind the guard, and tells what became of the files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memgate_worker.guard.build import GuardFiles
from memgate_worker.guard.guard import Guard, Protection, make_scratch, remove_scratch

#: the one that any user can run
PYTHON = next((path for path in ("/usr/bin/python3",) if Path(path).exists()), sys.executable)
#: a user without rights, for tests that run as root
OTHER_USER = 54321
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to protect files, and as whom."""

    protection: Protection
    as_other_user: bool = False
    use_landlock: bool = True

    @property
    def user(self) -> int | None:
        """The user that programs are run as; None: the test's own."""
        return OTHER_USER if self.as_other_user else None


#: by the names that tests have them in their ids
WAYS = {
    "overlay": Way(protection=Protection.OVERLAY),
    "overlay-as-user": Way(protection=Protection.OVERLAY, as_other_user=True),
    "preload": Way(protection=Protection.PRELOAD),
    "preload-as-user": Way(protection=Protection.PRELOAD, as_other_user=True),
    "preload-without-landlock": Way(protection=Protection.PRELOAD, use_landlock=False),
}

#: what `take_snapshot` compares: type and mode, size, time of the last change, content or target
Snapshot = dict[str, tuple[int, int, int, bytes]]


def take_snapshot(directory: Path) -> Snapshot:
    """Read every name, mode, time and byte beneath a directory."""
    snapshot: Snapshot = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        info = path.lstat()
        content = b""
        if path.is_symlink():
            content = os.readlink(path).encode()
        elif path.is_file():
            content = path.read_bytes()
        snapshot[str(path.relative_to(directory))] = (
            info.st_mode,
            info.st_size,
            info.st_mtime_ns,
            content,
        )
    return snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of files, and how programs are run in it."""

    way: Way
    files: GuardFiles
    directory: Path
    scratch: Path
    run_dir: Path

    def guard(self, **changes: object) -> Guard:
        """Return the guard for this place."""
        settings: dict[str, object] = {
            "files": self.files,
            "protection": self.way.protection,
            "scratch": self.scratch,
            "run_dir": self.run_dir,
            "use_landlock": self.way.use_landlock,
            **changes,
        }
        return Guard(**settings)  # type: ignore[arg-type]

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        guard: Guard | None = None,
        stdout: int = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command behind the guard."""
        guard = guard or self.guard()
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.directory), "LC_ALL": "C"}
        return subprocess.run(
            guard.command(command),
            cwd=cwd or self.directory,
            env=guard.environment({**base, **(environment or {})}),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            user=self.way.user,
            group=self.way.user,
            extra_groups=None if self.way.user is None else [],
        )

    def own(self) -> None:
        """Give the files to the user that programs are run as."""
        if self.way.as_other_user:
            for path in [self.directory, *self.directory.rglob("*")]:
                os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)

    def python(self, program: str, *arguments: str) -> str:
        """Run a Python program behind the guard, which must succeed, and return what it prints."""
        result = self.run([PYTHON, "-c", program, *arguments])
        assert result.returncode == 0, result.stderr
        return result.stdout

    def shell(self, program: str) -> str:
        """Run a shell program behind the guard, which must succeed, and return what it prints."""
        result = self.run(["/bin/sh", "-euc", program])
        assert result.returncode == 0, result.stderr
        return result.stdout


@contextmanager
def make_place(way: Way, files: GuardFiles) -> Iterator[Place]:
    """Make a place with nothing in its directory."""
    scratch = make_scratch()
    with tempfile.TemporaryDirectory(prefix="memgate-test-") as name:
        base = Path(name).resolve()
        base.chmod(0o755)
        directory, run_dir = base / "project", base / "run"
        directory.mkdir()
        run_dir.mkdir()
        if way.as_other_user:
            for path in (directory, run_dir, scratch, *scratch.iterdir()):
                os.chown(path, OTHER_USER, OTHER_USER)
            (scratch / "files").chmod(0o5700)  # which a change of owner clears
        try:
            yield Place(way=way, files=files, directory=directory, scratch=scratch, run_dir=run_dir)
        finally:
            remove_scratch(scratch)
