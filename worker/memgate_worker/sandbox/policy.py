"""Which sandbox jobs are run in on this machine, and the command that starts it.

The strictest level that works is used, or the one that the operator names. Whether a level works
depends on what is to be seen in it: another user must be able to read it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from memgate.errors import SandboxError
from memgate_worker.sandbox import enter, landlock
from memgate_worker.sandbox.cell import NUM_UIDS, Cell
from memgate_worker.sandbox.level import Level

_PROBE_TIMEOUT_S = 30

#: users of jobs are among these, which no one uses: beyond those of people and of containers
_FIRST_UID, _NUM_RANGES = 1 << 30, 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPolicy:
    """What an operator says about sandboxes."""

    #: the level to use; None: the strictest that works
    use: Level | None = None
    #: below this, nothing of a caller's is run
    least: Level = Level.NONE


#: what there is, unless an operator says otherwise
STRICTEST = SandboxPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLevel:
    """The level that is used, and why each stricter one is not."""

    level: Level
    refusals: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.level.value}{''.join(f' ({refusal})' for refusal in self.refusals)}"


def make_cell(policy: SandboxPolicy, readable: Sequence[Path]) -> Cell:
    """Return the sandbox for a process and its jobs.

    Raises:
        SandboxError: if the operator asks for more than works here.
    """
    seen = tuple(dict.fromkeys(str(path) for path in readable if path.exists()))
    chosen = choose(policy, seen)
    first = _choose_uids() if chosen.level is not Level.NAMESPACES else None
    cell = Cell(level=chosen.level, readable=seen, first_uid=first)
    if chosen.level is Level.NONE and cell.needs_rights_to_read:
        return replace(cell, first_uid=None)  # another user could not read it
    return cell


def command_in(cell: Cell, command: Sequence[str]) -> list[str]:
    """Return the command line that starts a process that is kept for jobs."""
    if not cell.level.is_apart:
        return list(command)
    return [*_ENTER, cell.level.value, "--host", cell.to_json(), "--", *command]


_ENTER = (sys.executable, "-I", "-S", str(enter.__file__))


def choose(policy: SandboxPolicy, readable: tuple[str, ...] = ()) -> ChosenLevel:
    """Return the level to use for what must be read.

    Raises:
        SandboxError: if the operator asks for more than works here.
    """
    chosen = _choose(policy.use, readable, os.geteuid())
    if policy.use is not None and chosen.level is not policy.use:
        raise SandboxError(
            f"MEMGATE_SANDBOX is {policy.use.value!r}, and that does not work here:"
            f" {'; '.join(chosen.refusals)}; unset it to use the strictest level that does"
        )
    if not chosen.level.reaches(policy.least):
        why = "; ".join(chosen.refusals) or f"MEMGATE_SANDBOX is {chosen.level.value!r}"
        raise SandboxError(
            f"nothing of a caller's is run below sandbox level {policy.least.value!r}"
            f" (MEMGATE_SANDBOX_LEVEL), and here it would be {chosen.level.value!r}: {why}"
        )
    return chosen


@cache
def _choose(use: Level | None, readable: tuple[str, ...], _user: int) -> ChosenLevel:
    refusals: list[str] = []
    for level in Level if use is None else (use,):
        refusal = _try(level, readable)
        if refusal is None:
            return ChosenLevel(level=level, refusals=tuple(refusals))
        refusals.append(f"{level.value}: {refusal}")
    return ChosenLevel(level=Level.NONE, refusals=tuple(refusals))


def _try(level: Level, readable: tuple[str, ...]) -> str | None:
    """Return why a level does not work, None if it does."""
    if level is Level.NONE:
        return None
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "this is not Linux on x86-64"
    if level is Level.LANDLOCK:
        return None if landlock.find_version() else "the kernel has no Landlock"
    first = _choose_uids() if level is Level.ROOT else None
    if level is Level.ROOT and first is None:
        return "we are not root" if os.geteuid() else "there are no users for jobs here"
    return _run_probe(Cell(level=level, readable=readable, first_uid=first))


#: what the process that is kept must be able to do for a job
_PROBE = (
    "import sys; sys.path.append(sys.argv[1]);"
    " from memgate_worker.sandbox.probe import main; main(sys.argv[2])"
)


def _run_probe(cell: Cell) -> str | None:
    packages = Path(enter.__file__).resolve().parents[2]
    ours = (str(packages / "memgate_worker"), sys.base_prefix)
    seen = replace(cell, readable=(*cell.readable, *ours))
    program = [os.path.realpath(sys.executable), "-I", "-S", "-c", _PROBE, str(packages)]
    ran = subprocess.run(
        command_in(seen, [*program, seen.to_json()]),
        env={},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    if ran.returncode == 0:
        return None
    said = ran.stderr.strip().splitlines()[-1:] or [f"it ended with status {ran.returncode}"]
    return said[0].removeprefix("memgate sandbox: ")


def _choose_uids() -> int | None:
    """Return the first of a range of users that nobody else is; None: there is none for us."""
    if os.geteuid() != 0:
        return None
    last = 0
    with open("/proc/self/uid_map") as lines:
        for line in lines:
            inside, _, count = map(int, line.split())
            last = max(last, inside + count)
    if last > _FIRST_UID + _NUM_RANGES * NUM_UIDS:
        return _FIRST_UID + secrets.randbelow(_NUM_RANGES) * NUM_UIDS
    return None
