"""Jobs that were held because there was no answer -> released, canceled or left held.

``judge_held`` decides and does nothing; ``Releaser`` does what it says. It remembers nothing: what
is to be done is in the jobs' records, so it may be stopped, started and run twice at any time.
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
from memgate.decision import Decision
from memgate.errors import Fault, UnknownGpuError
from memgate_service.admission.slurm.controller import SlurmController, SlurmError, SlurmJob

#: statuses of a question that was read, None if the mistake was found before it was sent; others
#: are about the key, the address or the request itself, which are the operator's
_ABOUT_THE_QUESTION = (None, 413, 422)

#: what Slurm shows in a line
_MAX_WHY = 300


class ReleaseAction(StrEnum):
    """What becomes of a held job."""

    RELEASE = "release"
    CANCEL = "cancel"
    HOLD = "hold"
    """It stays held, and an administrator decides."""
    WAIT = "wait"
    """It stays held, and memgate is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePolicy:
    """What the operator wants. A job is never canceled for want of an answer."""

    rejected: ReleaseAction = ReleaseAction.CANCEL
    uncertain: ReleaseAction = ReleaseAction.RELEASE
    unanswered: ReleaseAction = ReleaseAction.WAIT
    #: how long to wait for an answer before it counts as none
    patience_seconds: float = 600.0

    def __post_init__(self) -> None:
        """Check that no job can be canceled because memgate is down."""
        if self.unanswered is ReleaseAction.CANCEL:
            raise ValueError("unanswered is 'cancel': that memgate is down is not the job's fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVerdict:
    """What to do with a job, and what to note of it."""

    action: ReleaseAction
    record: dict[str, Any]
    why: str


def judge_held(
    answer: ServedEstimate | ClientError, gpu: str, policy: ReleasePolicy, waited_seconds: float
) -> HeldVerdict:
    """Decide about a held job."""
    if isinstance(answer, ServedEstimate):
        return _judge_estimate(answer, gpu, policy)
    action, decision = _judge_error(answer, policy, waited_seconds)
    why = answer.message[:_MAX_WHY]
    return HeldVerdict(
        action=action, record={"gpu": gpu, "decision": decision, "why": why}, why=why
    )


def whose(error: ClientError) -> Fault:
    """Return whose fault it is that a held job has no estimate.

    The GPU's name comes from the plugin's own table, and the key from its settings: what is wrong
    with them is the operator's, not the author's.
    """
    if error.fault is not Fault.CALLER or not isinstance(error, AnswerError):
        return error.fault
    if error.code == UnknownGpuError.code or error.status not in _ABOUT_THE_QUESTION:
        return Fault.OPERATOR
    return Fault.CALLER


def _judge_error(
    error: ClientError, policy: ReleasePolicy, waited_seconds: float
) -> tuple[ReleaseAction, str]:
    """Return what to do with a job that has no estimate, and the decision to note.

    ``gate.lua`` has the same table. Only the author's own mistake can cancel a job.
    """
    fault = whose(error)
    if fault is Fault.CALLER:
        return policy.rejected, "bad_spec"
    if fault in (Fault.JOB, Fault.UNSUPPORTED):
        # an operator who cancels what may not fit wants nothing released unseen: a person decides
        is_strict = policy.uncertain is ReleaseAction.CANCEL
        return ReleaseAction.HOLD if is_strict else policy.uncertain, "uncertain"
    is_late = waited_seconds > policy.patience_seconds
    return policy.unanswered if is_late else ReleaseAction.WAIT, "unanswered"


def _judge_estimate(said: ServedEstimate, gpu: str, policy: ReleasePolicy) -> HeldVerdict:
    actions = {
        Decision.ADMIT: ReleaseAction.RELEASE,
        Decision.REJECT: policy.rejected,
        Decision.UNCERTAIN: policy.uncertain,
    }
    why = said.explanation.text[:_MAX_WHY]
    record = {
        "decision": said.decision,
        "needs": said.needs_bytes,
        "capacity": said.capacity_bytes,
        "gpu": gpu,
        "id": said.id,
    }
    if said.page is not None:
        record["page"] = said.page
    if said.decision is not Decision.ADMIT:
        record["why"] = why
    action = actions[said.decision]
    if said.is_advice_pending and action is not ReleaseAction.RELEASE:
        action = ReleaseAction.WAIT  # for seconds: the owner then reads once what would fit
    return HeldVerdict(action=action, record=record, why=why)


class Releaser:
    """Looks at all held jobs, once or for ever."""

    def __init__(
        self,
        client: Client,
        controller: SlurmController,
        policy: ReleasePolicy,
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

    def _settle(self, job: SlurmJob, answers: dict[str, ServedEstimate | ClientError]) -> bool:
        """Do what there is to do about a job; tell whether it still waits."""
        question = job.record.get("question")
        if not isinstance(question, str):
            if not job.is_held:  # an administrator has decided
                self._controller.note(job, _without_hold(job.record))
            return False
        if question not in answers:
            answers[question] = self._ask(question)
        waited = self._clock() - job.submitted_at
        verdict = judge_held(answers[question], str(job.record.get("gpu")), self._policy, waited)
        if not job.is_held:  # an administrator was quicker, or we were stopped half way
            self._controller.note(job, verdict.record)
            return False
        if verdict.action is ReleaseAction.WAIT:
            return True
        self._act(job, verdict)
        self._tell(f"job {job.job_id}: {verdict.action}: {verdict.why}")
        return False

    def _act(self, job: SlurmJob, verdict: HeldVerdict) -> None:
        if verdict.action is ReleaseAction.RELEASE:
            # released first: stopped here, the record still says what is to be done
            if not (job.record.get("owner_held") or job.is_admin_held):
                self._controller.release(job)
            self._controller.note(job, verdict.record)
        elif verdict.action is ReleaseAction.CANCEL:
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
            if whose(error) in (Fault.OPERATOR, Fault.PASSING):
                self._tell(f"no answer: {error.message}")
            return error


def _without_hold(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("held", "owner_held")}
