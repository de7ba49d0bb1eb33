"""How long a job is watched. No torch here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

#: the steps after which memory is usually steady: gradients in the first, optimizer state from the
#: second on, and two that show the rest
MIN_STEPS = 4

#: what comes back every so many steps (a penalty on gradients, histograms, samples, a list that
#: grows) was seen after this many, and what an evaluation leaves in pieces after the second one;
#: where that takes long, after so much processor time: how busy the machine is decides nothing
_USUAL_STEPS = 64
_USUAL_EVALUATIONS = 2
_USUAL_SECONDS = 5.0

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
    #: that have ended
    num_evaluations: int = 0
    #: of processor time since its first step
    worked_seconds: float = 0.0


class Watch(NamedTuple):
    """When to stop, as the caller wants it."""

    #: stop after so many training steps, whatever comes later
    steps: int | None = None
    #: ``evaluation``: go on until there was one. ``end``: until the job ends
    until: str | None = None
    #: stop after so many seconds from the first step, unless ``steps`` or ``until`` is given
    seconds: float = 30.0
    #: go on until there were so many steps, or for a few seconds, after an evaluation was seen
    usual_steps: int = _USUAL_STEPS

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Watch:
        """Read what ``to_environment`` wrote."""
        steps = variables.get("MEMGATE_WATCH_STEPS")
        return cls(
            steps=int(steps) if steps else None,
            until=variables.get("MEMGATE_WATCH_UNTIL") or None,
            seconds=float(variables["MEMGATE_WATCH_SECONDS"]),
            usual_steps=int(variables["MEMGATE_WATCH_USUAL_STEPS"]),
        )

    def to_environment(self) -> Mapping[str, str]:
        """Return variables for the job's processes."""
        return {
            "MEMGATE_WATCH_STEPS": str(self.steps or ""),
            "MEMGATE_WATCH_UNTIL": self.until or "",
            "MEMGATE_WATCH_SECONDS": str(self.seconds),
            "MEMGATE_WATCH_USUAL_STEPS": str(self.usual_steps),
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
            return "evaluation" if self._is_usual(seen, seconds) else None
        least = _PATIENT_SECONDS if seen.is_longest_due else 0.0
        is_late = seconds > max(self.seconds, least)
        return "time" if is_late and self.until is None else None

    def _is_usual(self, seen: Seen, seconds: float) -> bool:
        """Tell whether the job has shown what it does again and again."""
        is_seen = seen.num_steps >= self.usual_steps and seen.num_evaluations >= min(
            _USUAL_EVALUATIONS, self.usual_steps
        )
        return is_seen or seen.worked_seconds > _USUAL_SECONDS or seconds > self.seconds
