"""What is known about a job that waits, and what happens to it. Asks nothing, and does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from memgate.decision import Decision
from memgate.errors import InputError, OperatorError
from memgate.explanation import Sizes
from memgate.gpus import CATALOGUE, GpuRequest, GpuSpec
from memgate.placement import Room
from memgate.report import Estimate
from memgate_service.admission.core.answers import Question
from memgate_service.admission.core.cases import Case
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.slurm.records import Record

#: how much Slurm shows in a line
MAX_WHY = 300

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
    is_advice_pending: bool = False
    """A worker is looking for the batch that would fit: its owner is told once, with that."""


def settle(judgement: Judgement, gpu: str) -> Settlement:
    """Return what happens to a held job that was judged."""
    (finding,) = judgement.findings
    why = finding.explanation.text[:MAX_WHY]
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
    return Settlement(
        action=judgement.action,
        record=record,
        why=why,
        is_advice_pending=judgement.is_advice_pending,
    )


def find_cards(names: str) -> list[GpuSpec]:
    """Return the GPUs that the plugin has noted as those of the cluster, the smallest first."""
    cards = [CATALOGUE[name] for name in names.split(",") if name in CATALOGUE]
    return sorted(cards, key=lambda gpu: gpu.memory_bytes)
