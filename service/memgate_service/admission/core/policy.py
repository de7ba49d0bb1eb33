"""What an operator may choose: what happens to a job, by what is known about it.

The defaults fail open: memgate must not bring a cluster to a halt. If nothing is known, whose fault
that is decides, and nothing else does (``memgate.errors.Fault``):

    caller       what a person wrote about the job is wrong           ``mistaken``
    job          the job would fail on a GPU, whatever its memory     ``unmeasured``
    unsupported  memgate cannot run this kind of job: its own limit   ``unmeasured``
    operator     something is not installed or not configured         ``unknown``
    passing      there is no answer now                               ``unknown``
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memgate.decision import Decision
from memgate.errors import Fault


class Action(StrEnum):
    """What happens to a job. Each door does it in its own way."""

    ADMIT = "admit"
    REJECT = "reject"
    HOLD = "hold"
    """It stays, and does not run until a person decides or there is an answer."""
    WAIT = "wait"
    """It is left as it is, and memgate is asked again."""


#: faults that asking again may fix: there is no answer yet
_WITHOUT_ANSWER = frozenset({Fault.OPERATOR, Fault.PASSING})


def decide_fault(fault: Fault) -> Decision:
    """Say what is known about a job without an estimate; callers' mistakes are not decided here."""
    return Decision.UNKNOWN if fault in _WITHOUT_ANSWER else Decision.UNCERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator has chosen."""

    mistaken: Action = Action.REJECT
    """The description of the job is wrong."""
    rejected: Action = Action.REJECT
    """It does not fit."""
    uncertain: Action = Action.ADMIT
    """It may not fit."""
    unmeasured: Action = Action.ADMIT
    """It cannot be run, so what it needs will not be known: by default it is let in."""
    unknown: Action = Action.ADMIT
    """There is no answer."""
    patience_seconds: float = 0.0
    """How long to wait for a missing answer before ``unknown`` applies."""

    def choose(
        self, decision: Decision, fault: Fault | None = None, waited_seconds: float = 0.0
    ) -> Action:
        """Return what happens to a job."""
        if decision is Decision.UNKNOWN:
            return self.unknown if waited_seconds >= self.patience_seconds else Action.WAIT
        if fault is not None:
            return self.unmeasured
        return {
            Decision.ADMIT: Action.ADMIT,
            Decision.UNCERTAIN: self.uncertain,
            Decision.REJECT: self.rejected,
        }[decision]
