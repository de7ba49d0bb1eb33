"""What workers can run, announced with each report: which stored answers still count.

A worker writes its announcement into its entry in rq's register of workers, so it goes when the
worker signs off, or expires with the entry when the worker is lost. The service never looks at a
runtime: it trusts the announcements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from memgate.contract import Work
from memgate.run_key import EngineIdentity
from memgate_worker.limits import RunLimits

#: instead of a level: the worker lacks the sandbox that its operator demands
REFUSED = "too weak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What one worker can run."""

    #: of each runtime, and of the analysis of traces
    engines: tuple[EngineIdentity, ...]
    #: the runtime for jobs that name none
    default_runtime: str
    limits: RunLimits
    #: the level of its sandbox, or ``REFUSED``; empty: a worker of an older version
    sandbox: str = ""


def write_announcement(announcement: Announcement) -> bytes:
    """Turn an announcement into JSON."""
    return msgspec.json.encode(announcement)


def read_announcement(written: bytes | None) -> Announcement | None:
    """Read an announcement; None if there is none, or only an unreadable one of another version."""
    try:
        return msgspec.json.decode(written or b"", type=Announcement)
    except msgspec.DecodeError:
        return None


class Served(NamedTuple):
    """What can answer a question now: a stored result counts only if one of these made it."""

    #: empty: there are no workers, and whatever is stored counts
    engines: tuple[EngineIdentity, ...] = ()
    #: the highest of all workers' limits
    limits: RunLimits = RunLimits(memory_bytes=0, seconds=0)

    @property
    def identities(self) -> tuple[str, ...]:
        """The digests of what can answer."""
        return tuple(sorted({engine.digest() for engine in self.engines}))


class Serving:
    """The announcements of all workers together."""

    def __init__(self, announcements: Iterable[Announcement] = ()) -> None:
        self._announcements = tuple(announcements)
        #: digests of everything that can be run
        self.identities = frozenset(
            engine.digest() for known in self._announcements for engine in known.engines
        )

    @property
    def sandboxes(self) -> tuple[str, ...]:
        """The levels of the workers' sandboxes, each once."""
        return tuple(sorted({known.sandbox for known in self._announcements if known.sandbox}))

    @property
    def missing_runtime(self) -> str | None:
        """The runtime for jobs that name none, if there are workers and none has it."""
        there = {engine.runtime.name for known in self._announcements for engine in known.engines}
        wanted = (known.default_runtime for known in self._announcements)
        return next((name for name in wanted if name not in there), None)

    def find(self, work: Work) -> Served:
        """Return what can answer a question."""
        found = [
            (engine, known.limits)
            for known in self._announcements
            for engine in known.engines
            if engine.runtime.name == _runtime_name(work, known)
        ]
        if not found:
            return Served()
        limits = RunLimits(
            memory_bytes=max(limits.memory_bytes for _, limits in found),
            seconds=max(limits.seconds for _, limits in found),
        )
        return Served(tuple(dict.fromkeys(engine for engine, _ in found)), limits)


def _runtime_name(work: Work, known: Announcement) -> str:
    if work.job is None:
        return ""
    return work.job.runtime or known.default_runtime
