"""Turns a command into one that runs apart from the machine, and says how far apart.

Levels, best first:

1. root: namespaces, made with the right to do so;
2. namespaces: the same in a user namespace, as any user may where the kernel allows it;
3. landlock: no sockets but local ones; other processes of the user can be seen and ended;
4. none.

Files are not protected here: what runs inside uses ``memgate_worker.guard``, which takes Landlock
for it where there are no overlays. What a command must not see is in `secrets.py` and
`programs.py`. Nothing here decides whether a level is good enough.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memgate_worker.sandbox import enter
from memgate_worker.sandbox.level import Level

FAILED_STATUS = enter.FAILED_STATUS

_PROBE_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What is put around one command."""

    level: Level
    #: a directory that becomes private, empty and held in memory; None: none does
    memory_at: Path | None = None
    memory_bytes: int = 0

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that starts `command` in the sandbox."""
        if self.level is Level.NONE:
            return list(command)
        memory = []
        if self.memory_at is not None and self.level.is_apart:
            memory = ["--memory-at", str(self.memory_at), str(self.memory_bytes)]
        program = [sys.executable, "-I", "-S", str(enter.__file__)]
        return [*program, self.level.value, *memory, "--", *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChoice:
    """The best level that works here."""

    level: Level
    #: why each better one does not
    refusals: tuple[str, ...]


def choose_level(
    among: Sequence[Level] = (Level.ROOT, Level.NAMESPACES, Level.LANDLOCK),
) -> LevelChoice:
    """Try levels, best first."""
    refusals: list[str] = []
    for level in among:
        refusal = _try_level(level)
        if refusal is None:
            return LevelChoice(level=level, refusals=tuple(refusals))
        refusals.append(f"{level.value}: {refusal}")
    return LevelChoice(level=Level.NONE, refusals=tuple(refusals))


def _try_level(level: Level) -> str | None:
    """Return why a level does not work, None if it does."""
    ran = subprocess.run(
        Sandbox(level=level).command(["/bin/true"]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    if ran.returncode == 0:
        return None
    return ran.stderr.strip() or f"it ended with status {ran.returncode}"
