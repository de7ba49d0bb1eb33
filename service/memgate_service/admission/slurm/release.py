"""Jobs that are held until there is an answer -> released, canceled or left, once there is one.

No state is kept here: what to do is in the jobs' records, so the program may be stopped, started
and run twice at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from memgate.client.clients import Client
from memgate.decision import Decision
from memgate.errors import InputError, OperatorError
from memgate.explanation import Sizes
from memgate.gpus import GpuRequest
from memgate.placement import Room
from memgate.report import Estimate
from memgate_service.admission.core.answers import Question
from memgate_service.admission.core.cases import Case
from memgate_service.admission.core.judgement import Judgement, find_without_case
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.sequence import Rules, judge_cases, run
from memgate_service.admission.core.server_asker import ServerAsker
from memgate_service.admission.slurm.commands import SlurmCommands, SlurmError, SlurmJob
from memgate_service.admission.slurm.records import Record

#: how much Slurm shows in a line
_MAX_WHY = 300

#: what operators call the actions of Slurm
WORDS = {
    Action.ADMIT: "release",
    Action.REJECT: "cancel",
    Action.HOLD: "hold",
    Action.WAIT: "wait",
}
ACTIONS = {word: action for action, word in WORDS.items()}


def make_policy(
    *, rejected: Action, uncertain: Action, unanswered: Action, patience_seconds: float
) -> Policy:
    """Make the policy for held jobs: none is canceled for a fault that is not its author's.

    Raises:
        InputError: if jobs would be canceled because memgate does not answer.
    """
    if unanswered is Action.REJECT:
        raise InputError("unanswered is 'cancel': that memgate is down is not the job's fault")
    # An operator who cancels what may not fit wants nothing released unseen: a person decides.
    is_strict = uncertain is Action.REJECT
    return Policy(
        mistaken=rejected,
        rejected=rejected,
        uncertain=uncertain,
        unmeasured=Action.HOLD if is_strict else uncertain,
        unknown=unanswered,
        patience_seconds=patience_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCase(Case):
    """A job as its owner described it, on the GPU that the plugin's settings name."""

    question: Question

    def questions(self) -> dict[str, Question]:
        """Return the question that was asked, or could not be asked, when the job was submitted."""
        return {"": self.question}

    def rooms(self, estimates: Mapping[str, Estimate]) -> list[Room]:
        """Return what the estimate itself says: it is about the GPU that the job gets."""
        (estimate,) = estimates.values()
        sizes = Sizes(estimate.needs_bytes, estimate.least_bytes, estimate.available_bytes)
        return [Room(gpu=estimate.gpu, decision=estimate.decision, sizes=sizes)]

    def own_estimate(self, estimates: Mapping[str, Estimate]) -> Estimate | None:
        """Return the estimate."""
        (estimate,) = estimates.values()
        return estimate


def read_question(text: str) -> HeldCase:
    """Read the body of ``POST /estimate`` that the plugin has noted. The server reads the job.

    Raises:
        InputError: if the job is not JSON: Lua accepts some texts that are not, such as ``1.``.
        OperatorError: if the rest is not what the plugin writes.
    """
    try:
        asked: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the description is not JSON: {error}") from None
    try:
        gpu = GpuRequest.model_validate(asked["gpu"])
        return HeldCase(question=Question(key=text, job=asked["job"], gpu=gpu))
    except (ValueError, KeyError, TypeError):
        raise OperatorError("the record in AdminComment has no question for memgate") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What to do with a held job, what to record about it, and why."""

    action: Action
    record: Record
    why: str


def settle(judgement: Judgement, gpu: str) -> Settlement:
    """Return what happens to a held job that was judged."""
    (finding,) = judgement.findings
    why = finding.explanation.text[:_MAX_WHY]
    if finding.known is None:
        is_unknown = judgement.decision is Decision.UNKNOWN
        decision = "unanswered" if is_unknown else str(judgement.decision)
        record = Record(gpu=gpu, decision=decision, why=why)
    else:
        estimate = finding.known.estimate
        record = Record(
            decision=estimate.decision,
            needs=estimate.needs_bytes,
            capacity=estimate.capacity_bytes,
            gpu=gpu,
            id=finding.known.job_id,
            page=finding.known.page,
            why="" if estimate.decision is Decision.ADMIT else why,
        )
    # Its owner is told once, including what would fit: finding that takes seconds.
    action = Action.WAIT if judgement.is_advice_pending else judgement.action
    return Settlement(action=action, record=record, why=why)


class Releaser:
    """Checks all held jobs, once or forever."""

    def __init__(
        self,
        client: Client,
        slurm: SlurmCommands,
        policy: Policy,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._asker = ServerAsker(client)
        self._slurm = slurm
        self._policy = policy
        self._log = log
        self._clock = clock

    def look(self) -> int:
        """Check every held job once; return how many still wait for an answer."""
        num_waiting = 0
        self._asker.start_round()
        for job in self._slurm.jobs():
            if not job.record.held:
                continue
            try:
                num_waiting += self._look_at(job)
            except SlurmError as error:  # its owner may have canceled it in the meantime
                self._log(f"job {job.job_id}: {error.message}")
        for why in self._asker.problems():
            self._log(f"no answer: {why}")
        return num_waiting

    def _look_at(self, job: SlurmJob) -> bool:
        """Do what a job needs done; return whether it still waits."""
        if not job.record.question:
            if not job.is_held:  # an administrator has decided
                self._slurm.note(job, _without_hold(job.record))
            return False
        settlement = self._settle(job)
        if not job.is_held:  # an administrator was quicker, or we were stopped halfway
            self._slurm.note(job, settlement.record)
            return False
        if settlement.action is Action.WAIT:
            return True
        self._act(job, settlement)
        self._log(f"job {job.job_id}: {WORDS[settlement.action]}: {settlement.why}")
        return False

    def _settle(self, job: SlurmJob) -> Settlement:
        gpu = job.record.gpu
        waited_seconds = self._clock() - job.submitted_at
        rules = Rules(policy=self._policy, waited_seconds=waited_seconds)
        try:
            case = read_question(job.record.question)
            return settle(run(judge_cases([case], rules), self._asker.do), gpu)
        except InputError as mistake:
            why = mistake.message[:_MAX_WHY]
            record = Record(gpu=gpu, decision="bad_spec", why=why)
            return Settlement(action=self._policy.mistaken, record=record, why=why)
        except OperatorError as error:
            return settle(rules.judge([find_without_case(error)]), gpu)

    def _act(self, job: SlurmJob, settlement: Settlement) -> None:
        if settlement.action is Action.ADMIT:
            # released first: if we are stopped here, the record still says what to do
            if not (job.record.owner_held or job.is_admin_held):
                self._slurm.release(job)
            self._slurm.note(job, settlement.record)
            return
        self._slurm.note(job, msgspec.structs.replace(settlement.record, held=True))
        if settlement.action is Action.REJECT:
            self._slurm.cancel(job)


def _without_hold(record: Record) -> Record:
    return msgspec.structs.replace(record, held=False, owner_held=False)
