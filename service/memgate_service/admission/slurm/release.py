"""Jobs that were held for want of an answer -> released, canceled or left, once there is one.

``judge`` decides and does nothing; ``Releaser`` does what it says. It remembers nothing: what is to
be done is in the jobs' records, so it may be stopped, started and run twice at any time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memgate.client.clients import Client
from memgate.client.conversation import ServedEstimate
from memgate.client.errors import AnswerError, ClientError, NotDoneError, RefusedError
from memgate_service.admission.slurm.controller import Controller, Job, SlurmError

#: codes of mistakes in a description, which its author can correct. Every other error is memgate's
#: or the operator's, the GPU's name too: it comes from the settings of the plugin.
_AUTHORS = {"BAD_INPUT", "BAD_ALLOCATOR_CONFIG"}

#: codes of a run that memgate has tried often enough
_GAVE_UP = {"INTERNAL", "SIMULATION_BROKEN", "PROCESS_LOST", "WORKERS_LOST"}

#: statuses that the same question gets every time; None if it was never sent
_EVERY_TIME = (None, 413, 422)

#: what Slurm shows in a line
_MAX_WHY = 300


class Action(StrEnum):
    """What becomes of a held job."""

    RELEASE = "release"
    CANCEL = "cancel"
    HOLD = "hold"
    """It stays held, and an administrator decides."""
    WAIT = "wait"
    """It stays held, and memgate is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator wants. A job is never canceled for want of an answer."""

    rejected: Action = Action.CANCEL
    uncertain: Action = Action.RELEASE
    unanswered: Action = Action.WAIT
    #: how long to wait for an answer before it counts as none
    patience_seconds: float = 600.0

    def __post_init__(self) -> None:
        """Check that no job can be canceled because memgate is down."""
        if self.unanswered is Action.CANCEL:
            raise ValueError("unanswered is 'cancel': that memgate is down is not the job's fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do with a job, and what to note of it."""

    action: Action
    record: dict[str, Any]
    why: str


def judge(
    answer: ServedEstimate | ClientError, gpu: str, policy: Policy, waited_seconds: float
) -> Verdict:
    """Decide about a held job."""
    if isinstance(answer, ServedEstimate):
        return _judge_estimate(answer, gpu, policy)
    action, decision = _judge_error(answer, policy, waited_seconds)
    why = answer.message[:_MAX_WHY]
    return Verdict(action=action, record={"gpu": gpu, "decision": decision, "why": why}, why=why)


def _judge_error(error: ClientError, policy: Policy, waited_seconds: float) -> tuple[Action, str]:
    """Return what to do with a job that has no estimate, and the decision to note.

    Only its author's mistake can cancel it.
    """
    if not (isinstance(error, AnswerError) and _is_final(error)):
        is_late = waited_seconds > policy.patience_seconds
        return policy.unanswered if is_late else Action.WAIT, "unanswered"
    if error.code in _AUTHORS:
        return policy.rejected, "bad_spec"
    # an operator who cancels what may not fit wants nothing released unseen: a person decides
    is_strict = policy.uncertain is Action.CANCEL
    return Action.HOLD if is_strict else policy.uncertain, "uncertain"


def _is_final(error: AnswerError) -> bool:
    """Tell whether asking the same question again is of no use."""
    gave_up = error.job is not None and error.code in _GAVE_UP
    return gave_up or error.status in _EVERY_TIME


def _judge_estimate(said: ServedEstimate, gpu: str, policy: Policy) -> Verdict:
    actions = {
        "admit": Action.RELEASE,
        "reject": policy.rejected,
        "uncertain": policy.uncertain,
    }
    why = said.reasons[0].message
    if said.decision != "admit":
        if said.largest_batch_size is not None:
            why += f"; the largest batch that fits: {said.largest_batch_size}"
        elif smaller := said.why("SMALLER_BATCH_FITS"):  # there was no time for the largest
            why += f"; {smaller}"
        if said.fits_on:
            why += f"; it fits on {', '.join(said.fits_on[:3])}"
    record = {
        "decision": said.decision,
        "peak": said.peak_bytes,
        "needs": said.upper_bound_bytes,
        "capacity": said.capacity_bytes,
        "gpu": gpu,
        "id": said.job,
    }
    if said.decision != "admit":
        record["why"] = why[:_MAX_WHY]
    action = actions[said.decision]
    if said.is_advice_pending and action is not Action.RELEASE:
        action = Action.WAIT  # for seconds; its owner is told once, and then what would fit
    return Verdict(action=action, record=record, why=why[:_MAX_WHY])


class Releaser:
    """Looks at all held jobs, once or for ever."""

    def __init__(
        self,
        client: Client,
        controller: Controller,
        policy: Policy,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._controller = controller
        self._policy = policy
        self._tell = tell
        self._clock = clock

    def look(self) -> int:
        """Look at every held job once; return how many still wait for an answer."""
        num_waiting = 0
        answers: dict[str, ServedEstimate | ClientError] = {}
        for job in self._controller.jobs():
            if not job.record.get("held"):
                continue
            try:
                num_waiting += self._settle(job, answers)
            except SlurmError as error:  # its owner may have canceled it meanwhile
                self._tell(f"job {job.job_id}: {error.message}")
        return num_waiting

    def _settle(self, job: Job, answers: dict[str, ServedEstimate | ClientError]) -> bool:
        """Do what there is to do about a job; tell whether it still waits."""
        question = job.record.get("question")
        if not isinstance(question, str):
            if not job.is_held:  # an administrator has decided
                self._controller.note(job, _without_hold(job.record))
            return False
        if question not in answers:
            answers[question] = self._ask(question)
        waited = self._clock() - job.submitted_at
        verdict = judge(answers[question], str(job.record.get("gpu")), self._policy, waited)
        if not job.is_held:  # an administrator was quicker, or we were stopped half way
            self._controller.note(job, verdict.record)
            return False
        if verdict.action is Action.WAIT:
            return True
        self._act(job, verdict)
        self._tell(f"job {job.job_id}: {verdict.action}: {verdict.why}")
        return False

    def _act(self, job: Job, verdict: Verdict) -> None:
        if verdict.action is Action.RELEASE:
            # released first: stopped here, the record still says what is to be done
            if not (job.record.get("owner_held") or job.is_admin_held):
                self._controller.release(job)
            self._controller.note(job, verdict.record)
        elif verdict.action is Action.CANCEL:
            self._controller.note(job, verdict.record | {"held": True})
            self._controller.cancel(job)
        else:
            self._controller.note(job, verdict.record | {"held": True})

    def _ask(self, question: str) -> ServedEstimate | ClientError:
        try:
            asked = json.loads(question)
        except ValueError as error:  # Lua takes for JSON what Python does not, such as 1.
            return RefusedError(f"the description is not JSON: {error}", code="BAD_INPUT")
        try:
            return self._client.estimate(asked["job"], asked["gpu"], wait=0)
        except NotDoneError as error:
            return error
        except ClientError as error:
            if not (isinstance(error, AnswerError) and _is_final(error)):
                self._tell(f"no answer: {error.message}")
            return error


def _without_hold(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("held", "owner_held")}
