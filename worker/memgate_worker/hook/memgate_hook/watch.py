"""How long a job is watched. No torch here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

#: the steps after which memory is usually steady: gradients in the first, optimizer state from the
#: second on, and two that show the rest
MIN_STEPS = 4

#: how long a job is watched at least until its batches show what varies among them, and until all
#: of its optimizers have made a step
_PATIENT_SECONDS = 30.0


class Seen(NamedTuple):
    """What a job has done so far."""

    num_steps: int
    has_evaluated: bool
    #: a longest batch was asked for, and has not been run yet
    is_longest_due: bool = False
    #: an optimizer has made no step: gradients are accumulated, or it steps less often than others
    has_idle_optimizer: bool = False


class Watch(NamedTuple):
    """When to stop, as the caller wants it."""

    #: stop after so many training steps, whatever comes later
    steps: int | None = None
    #: ``evaluation``: go on until there was one. ``end``: until the job ends
    until: str | None = None
    #: stop after so many seconds from the first step, unless ``steps`` or ``until`` is given
    seconds: float = 30.0

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Watch:
        """Read what ``to_environment`` wrote."""
        steps = variables.get("MEMGATE_WATCH_STEPS")
        return cls(
            steps=int(steps) if steps else None,
            until=variables.get("MEMGATE_WATCH_UNTIL") or None,
            seconds=float(variables["MEMGATE_WATCH_SECONDS"]),
        )

    def to_environment(self) -> Mapping[str, str]:
        """Return variables for the job's processes."""
        return {
            "MEMGATE_WATCH_STEPS": str(self.steps or ""),
            "MEMGATE_WATCH_UNTIL": self.until or "",
            "MEMGATE_WATCH_SECONDS": str(self.seconds),
        }

    def why_stop(self, seen: Seen, seconds: float) -> str | None:
        """Return why it is enough: ``steps``, ``evaluation`` or ``time``; None if it is not.

        Args:
            seen: what the job has done.
            seconds: how long ago its first step was.
        """
        is_patient = seen.has_idle_optimizer and seconds <= max(self.seconds, _PATIENT_SECONDS)
        if self.steps is not None:
            return "steps" if seen.num_steps >= self.steps and not is_patient else None
        if self.until == "end" or seen.num_steps < MIN_STEPS or is_patient:
            return None
        if seen.has_evaluated and not seen.is_longest_due:
            return "evaluation"
        least = _PATIENT_SECONDS if seen.is_longest_due else 0.0
        is_late = seconds > max(self.seconds, least)
        return "time" if is_late and self.until is None else None
