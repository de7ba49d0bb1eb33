"""A random sequence of file operations; run as a program, with and without the guard.

Prints what each operation gave, then everything that is in the directory: the two runs must print
the same. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections.abc import Callable

NAMES = ("a", "b", "c", "d", "data", "deep", "notes.txt", "link", "links", "out", "checkpoint-100")


class Operations:
    """Operations on random paths; each returns what a program would see of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.num_done = 0

    def path(self) -> str:
        """Pick a path, relative or absolute, plain or roundabout."""
        parts = [self.random.choice(NAMES) for _ in range(self.random.choice((1, 1, 2, 2, 3)))]
        if self.random.random() < 0.1:
            parts.insert(1, "..")
        path = "/".join(parts)
        if self.random.random() < 0.1:
            path = os.path.join(BASE, path)
        if self.random.random() < 0.05:
            path += "/"
        return path

    def write(self) -> object:
        """Open for writing, in one of the modes, and write."""
        mode = self.random.choice(("w", "a", "x", "r+", "w+"))
        with open(self.path(), mode) as file:
            file.write(f"{self.num_done}\n" * self.random.randrange(5))
            return file.tell()

    def read(self) -> object:
        """Read a file."""
        with open(self.path(), "rb") as file:
            return file.read()

    def unlink(self) -> None:
        """Remove a name."""
        os.unlink(self.path())

    def mkdir(self) -> None:
        """Make a directory."""
        os.mkdir(self.path(), self.random.choice((0o755, 0o700)))

    def makedirs(self) -> None:
        """Make directories."""
        os.makedirs(self.path(), exist_ok=True)

    def rmdir(self) -> None:
        """Remove an empty directory."""
        os.rmdir(self.path())

    def rmtree(self) -> None:
        """Remove a directory with all that is in it."""
        shutil.rmtree(self.path(), ignore_errors=True)

    def rename(self) -> None:
        """Rename, over whatever is there."""
        os.rename(self.path(), self.path())

    def symlink(self) -> None:
        """Make a symbolic link."""
        os.symlink(self.path(), self.path())

    def link(self) -> None:
        """Make a hard link."""
        os.link(self.path(), self.path(), follow_symlinks=False)

    def chmod(self) -> None:
        """Change a mode."""
        os.chmod(self.path(), self.random.choice((0o644, 0o755, 0o600)))

    def utime(self) -> None:
        """Change the times."""
        os.utime(self.path(), (5, self.random.randrange(10**9)))

    def truncate(self) -> None:
        """Change a size."""
        os.truncate(self.path(), self.random.randrange(20))

    def look(self) -> object:
        """Ask about a path in several ways."""
        path = self.path()
        seen = [os.path.exists(path), os.path.islink(path), os.access(path, os.W_OK)]
        return [
            *seen,
            os.path.realpath(path).removeprefix(BASE),
            stat.S_IFMT(os.stat(path).st_mode),
        ]

    def list(self) -> object:
        """List a directory."""
        with os.scandir(self.path()) as entries:
            return sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in entries)

    def change_directory(self) -> object:
        """Work elsewhere for a moment, with relative paths and descriptors."""
        os.chdir(self.path())
        try:
            where = os.getcwd().removeprefix(BASE)
            with open("a", "a") as file:
                file.write("+")
            fd = os.open("..", os.O_RDONLY)
            try:
                return where, sorted(os.listdir(fd)), os.stat("data", dir_fd=fd).st_mode
            finally:
                os.close(fd)
        finally:
            os.chdir(BASE)

    def step(self) -> str:
        """Do one operation and describe it."""
        self.num_done += 1
        choices: tuple[Callable[[], object], ...] = (
            *(self.write, self.write, self.write, self.read, self.unlink, self.mkdir),
            *(self.makedirs, self.rmdir, self.rmtree, self.rename, self.rename, self.symlink),
            *(self.link, self.chmod, self.utime, self.truncate, self.look, self.list),
            self.change_directory,
        )
        operation = self.random.choice(choices)
        try:
            result = repr(operation())
        except OSError as error:
            result = f"errno {error.errno}"
        return f"{self.num_done} {operation.__name__}: {result}"


def describe(directory: str) -> list[str]:
    """Tell everything in a directory."""
    lines = []
    if not os.access(directory, os.R_OK | os.X_OK):
        return ["    closed"]
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        info = os.lstat(path)
        lines.append(f"{path.removeprefix(BASE)} {info.st_mode:o}")
        if stat.S_ISLNK(info.st_mode):
            lines.append(f"    -> {os.readlink(path).removeprefix(BASE)}")
        elif stat.S_ISDIR(info.st_mode):
            lines += describe(path)
        else:
            with open(path, "rb") as file:
                lines.append(f"    {info.st_nlink} {file.read()!r}")
            if info.st_mtime < 10**9:  # set by us
                lines.append(f"    {info.st_mtime}")
    return lines


if __name__ == "__main__":
    BASE = os.getcwd()
    operations = Operations(int(sys.argv[1]))
    output = [operations.step() for _ in range(int(sys.argv[2]))]
    sys.stdout.write("\n".join([*output, *describe(BASE)]) + "\n")
