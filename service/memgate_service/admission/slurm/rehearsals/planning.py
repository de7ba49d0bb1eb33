"""The queue and the time -> what to do next about each job that waits for a rehearsal. Pure.

One rehearsal for an array, one at a time for a user, and so many at a time for the cluster; a
job is never held beyond its timer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from memgate_service.admission.slurm.rehearsals.queue import Companion, Queue, WaitingJob

#: with less time than this on its timer a job is not rehearsed any more
MIN_SECONDS = 20.0


class Todo(Enum):
    """What there is to do about a job."""

    START = "start"
    """Rehearse it, or take what is known of its like."""
    FINISH = "finish"
    """Its companion has ended: act on what it found."""
    GIVE_UP = "give up"
    """Its time is over, or it has started: it goes on unmeasured."""
    CANCEL = "cancel"
    """A companion of a job that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalStep:
    """One thing to do."""

    todo: Todo
    waiting: WaitingJob | None = None
    companion: Companion | None = None


def plan(
    queue: Queue, now: float, max_rehearsals: int, patience_seconds: float
) -> Iterator[RehearsalStep]:
    """Yield what is to be done now.

    Args:
        queue: the jobs.
        now: seconds since 1970.
        max_rehearsals: at one time.
        patience_seconds: how long a job that is not held may take to be rehearsed.
    """
    companions = {companion.of: companion for companion in queue.companions}
    busy = [one for one in queue.companions if one.is_open]
    known = {waiting.job.job_id for waiting in queue.waiting}
    quota = _Quota(max_rehearsals - len(busy), {one.uid for one in busy})
    for one in busy:
        if one.of not in known:
            yield RehearsalStep(todo=Todo.CANCEL, companion=one)
    for waiting in sorted(queue.waiting, key=lambda one: one.job.submitted_at):
        companion = companions.get(waiting.job.job_id) or companions.get(waiting.script_of)
        left = _seconds_left(waiting, now, patience_seconds)
        if companion is not None and not companion.is_open:
            yield RehearsalStep(todo=Todo.FINISH, waiting=waiting, companion=companion)
        elif left <= 0 or waiting.job.has_ended:
            yield RehearsalStep(todo=Todo.GIVE_UP, waiting=waiting, companion=companion)
        elif companion is None and left >= MIN_SECONDS and quota.take(waiting.uid):
            yield RehearsalStep(todo=Todo.START, waiting=waiting)


class _Quota:
    """How many more rehearsals may be started, and who has one."""

    def __init__(self, num_left: int, users: set[int]) -> None:
        self._num_left = num_left
        self._users = users

    def take(self, uid: int) -> bool:
        """Say whether a user may have one now; it is then theirs."""
        if self._num_left <= 0 or uid in self._users:
            return False
        self._num_left -= 1
        self._users.add(uid)
        return True


def _seconds_left(waiting: WaitingJob, now: float, patience_seconds: float) -> float:
    record = waiting.job.record
    if record.held:
        return record.timer - now if waiting.job.is_pending else 0.0
    return waiting.job.submitted_at + patience_seconds - now
