"""What a process that is kept for many jobs needs to know to keep them apart: a plan, as JSON.

Made by ``policy.py`` on the side that starts it, and read on the other one. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from memgate_worker.sandbox.level import Level

#: the plan, in the environment of the process that is kept
_VARIABLE = "MEMGATE_SANDBOX_PLAN"

#: users of a process and its jobs; each job is another one, until they begin again
NUM_UIDS = 1 << 16
_FIRST_JOB = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How far jobs are kept apart, from the machine and from each other."""

    level: Level
    #: directories and files that are seen, and not changed
    readable: tuple[str, ...] = ()
    #: directories that the process itself may write to, and no job
    writable: tuple[str, ...] = ()
    #: the number of the first user, as the machine counts them; None: there is only our own
    first_uid: int | None = None
    num_uids: int = NUM_UIDS
    #: what a job may write, in all
    scratch_bytes: int = 2 << 30
    #: processes and threads of a job
    max_processes: int = 512
    #: open files by which a process joins the cgroups of jobs
    cgroups: tuple[int, ...] = ()

    @property
    def needs_rights_to_read(self) -> bool:
        """Some of what is to be read is in a directory that only its owner may enter."""
        return self.first_uid is not None and not all(map(_is_open_to_all, self.readable))

    def uid_of(self, number: int) -> int | None:
        """Return the user of a job, as the process that is kept counts them."""
        if self.first_uid is None:
            return None
        nth = _FIRST_JOB + number % (self.num_uids - _FIRST_JOB)
        return nth if self.level is Level.ROOT else self.first_uid + nth

    def with_variable(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment that tells the process that is kept."""
        return {**environment, _VARIABLE: self.to_json()}

    def to_json(self) -> str:
        """Return the plan as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cell:
        """Read it again."""
        found = cls(**json.loads(text))
        return replace(
            found,
            level=Level(found.level),
            readable=tuple(found.readable),
            writable=tuple(found.writable),
            cgroups=tuple(found.cgroups),
        )

    @classmethod
    def take_from_environment(cls) -> Cell | None:
        """Return what we were told, once: jobs do not see it. None: nothing keeps jobs apart."""
        text = os.environ.pop(_VARIABLE, "")
        return cls.from_json(text) if text else None

    def give_to_environment(self) -> None:
        """Have the program that this process becomes find it."""
        os.environ[_VARIABLE] = self.to_json()


def _is_open_to_all(path: str) -> bool:
    """Say whether another user can get to a file or directory."""
    real = Path(os.path.realpath(path))
    enter, read = 0o001, 0o004
    try:
        return all(one.stat().st_mode & enter for one in real.parents) and bool(
            real.stat().st_mode & read
        )
    except OSError:
        return False
