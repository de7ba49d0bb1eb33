"""What is known about jobs, and the operator's policy -> what happens to the object they are in.

Pure: no clock, no queue. The sentences come from ``memgate.explanation`` and ``memgate.placement``;
this module decides which of them apply to which part of an object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from memgate.decision import Decision
from memgate.errors import Fault, InputError, MemgateError
from memgate.explanation import Explanation, explain_fault
from memgate.gpus import GpuSpec
from memgate.max_batch import MaxBatch
from memgate.placement import Advice, Room, combine, explain_rooms, explain_unplaced
from memgate.report import SMALLER_BATCH_FITS, Estimate
from memgate_service.admission.core.answers import (
    AnyAnswer,
    KnownAnswer,
    MissingAnswer,
    Question,
)
from memgate_service.admission.core.cases import Case
from memgate_service.admission.core.policy import Action, Policy, decide_fault

#: how many parts of an object are named in front of a message about them
_MAX_LABELS = 3

#: questions for largest batches about one object: its message has room for a few
_MAX_BATCHES = 4


class MistakeError(InputError):
    """What a person wrote about a job is wrong, as the answer about the job shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known about one job."""

    decision: Decision
    explanation: Explanation
    case: Case | None = None
    """None if it is about all of an object."""
    known: KnownAnswer | None = None
    """The answer it rests on, if there is one."""
    fault: Fault | None = None
    """Why there is no answer."""
    page: str = ""
    """Where a person can look at it."""
    lacks_batch: bool = False
    """The largest batch that fits would help, and is not known."""
    answers: Mapping[str, AnyAnswer] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """All of it in one line, which ends with where to look."""
        return f"{self.explanation.text}; see {self.page}" if self.page else self.explanation.text

    @property
    def is_advice_pending(self) -> bool:
        """A worker is looking for the batch that would fit."""
        return any(one.is_advice_pending for one in self._known().values())

    def own_answer(self) -> KnownAnswer | None:
        """Return the answer about the place with the most memory, if there is one."""
        known = self._known()
        own = self.case.own_estimate(_estimates(known)) if self.case else None
        return next((one for one in known.values() if one.estimate is own), None)

    def batch_question(self) -> Question | None:
        """Return the question for the largest batch that fits."""
        return self.case.batch_question() if self.case else None

    def with_batch(self, batches: Mapping[str, MaxBatch], cluster: Sequence[GpuSpec]) -> Finding:
        """Return the same with the answer to that question, if it is there."""
        question = self.batch_question()
        batch = batches.get(question.key) if question else None
        if batch is None or self.case is None:
            return self
        found = _find_known(self.case, self._known(), cluster, batch)
        return replace(found, answers=self.answers)

    def _known(self) -> dict[str, KnownAnswer]:
        return {key: one for key, one in self.answers.items() if isinstance(one, KnownAnswer)}


def _estimates(known: Mapping[str, KnownAnswer]) -> dict[str, Estimate]:
    return {key: one.estimate for key, one in known.items()}


def find(case: Case, answers: Mapping[str, AnyAnswer], cluster: Sequence[GpuSpec]) -> Finding:
    """Return what the answers to a case's questions say about it.

    Raises:
        MistakeError: if an answer is that the description is wrong.
    """
    missing = [one for one in answers.values() if isinstance(one, MissingAnswer)]
    if missing:
        return _find_missing(case, missing)
    if case.doubt:
        explanation = Explanation(
            headline=f"it is not known whether this fits: {case.doubt}", why=[], helps=[]
        )
        return Finding(case=case, decision=Decision.UNCERTAIN, explanation=explanation)
    known = {key: one for key, one in answers.items() if isinstance(one, KnownAnswer)}
    return replace(_find_known(case, known, cluster, None), answers=answers)


def find_without_case(error: MemgateError) -> Finding:
    """Say why it is not even known what to ask about an object."""
    return Finding(
        decision=decide_fault(error.fault),
        explanation=explain_fault(error.fault, error.message),
        fault=error.fault,
    )


def _find_missing(case: Case, missing: Sequence[MissingAnswer]) -> Finding:
    """Say why there is no estimate; a mistake first, then what asking again may fix."""
    for one in missing:
        if one.fault is Fault.CALLER:
            where = ": ".join(filter(None, (case.label, case.source)))
            raise MistakeError(f"{where}: {one.why}" if where else one.why)
    worst = min(missing, key=lambda one: decide_fault(one.fault))
    return Finding(
        case=case,
        decision=decide_fault(worst.fault),
        explanation=explain_fault(worst.fault, worst.why),
        fault=worst.fault,
        page=worst.page,
    )


def _find_known(
    case: Case,
    known: Mapping[str, KnownAnswer],
    cluster: Sequence[GpuSpec],
    batch: MaxBatch | None,
) -> Finding:
    # What it needs differs a little from one generation to the next: the most counts.
    most = max(known.values(), key=lambda one: one.estimate.needs_bytes)
    estimates = _estimates(known)
    if case.is_unplaced:
        explanation = explain_unplaced(most.estimate.needs_bytes, case.name_gpu_by)
        return Finding(
            case=case, decision=Decision.ADMIT, explanation=explanation, known=most, page=most.page
        )
    rooms = case.rooms(estimates)
    decision = combine(rooms)
    advice = _advise(case, rooms, estimates, batch)
    advice = advice._replace(
        fits_on=most.estimate.fits_on, cluster=_name_cluster(cluster, most.estimate)
    )
    is_helped = decision is Decision.REJECT or (
        decision is Decision.UNCERTAIN and len(rooms) == 1 and not rooms[0].is_doubted
    )
    return Finding(
        case=case,
        decision=decision,
        explanation=explain_rooms(rooms, why=most.estimate.explanation.why, advice=advice),
        known=most,
        page=most.page,
        lacks_batch=is_helped and advice.largest_batch_size is None,
    )


def _name_cluster(cluster: Sequence[GpuSpec], said: Estimate) -> list[str]:
    """Name the GPUs of the cluster; none if doubts, and not sizes, keep the job from them."""
    is_small = any(said.needs_bytes <= gpu.memory_bytes for gpu in cluster)
    return [] if is_small and not said.fits_on else [gpu.name for gpu in cluster]


def _advise(
    case: Case, rooms: Sequence[Room], estimates: Mapping[str, Estimate], batch: MaxBatch | None
) -> Advice:
    """Say what would help, as far as is known; with several places, in the roomiest."""
    advice = Advice(name_gpu_by=case.name_gpu_by)
    if len(rooms) > 1 and combine(rooms) is not Decision.REJECT:
        return advice
    roomiest = max(rooms, key=lambda room: room.sizes.available_bytes)
    own = case.own_estimate(estimates)
    return advice._replace(
        declare=case.how_to_declare(roomiest.sizes.needs_bytes),
        largest_batch_size=_largest_batch(own, batch),
        batch_gpu=roomiest.gpu if len(rooms) > 1 else "",
        smaller_batch=own.why(SMALLER_BATCH_FITS) if own is not None and len(rooms) == 1 else "",
    )


def _largest_batch(own: Estimate | None, batch: MaxBatch | None) -> int | None:
    """Return the largest batch that fits, 0 if none does; None if it is not known."""
    if batch is not None:
        is_too_large = batch.tried[0].decision is Decision.REJECT  # or in doubt at any size
        return batch.batch_size or (0 if is_too_large else None)
    return None if own is None else own.largest_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is known about an object, and what happens to it."""

    decision: Decision
    """The worst of its parts."""
    action: Action
    findings: Sequence[Finding]
    cluster: Sequence[GpuSpec] = ()

    @property
    def message(self) -> str:
        """What speaks against it."""
        return "; ".join(self._say(one for one in self.findings if one.decision is self.decision))

    @property
    def warnings(self) -> list[str]:
        """What a person should know even though it is let in."""
        doubtful = (
            one
            for one in self.findings
            if one.decision is not Decision.ADMIT or (one.case and one.case.is_unplaced)
        )
        return [f"memgate: {text}" for text in self._say(doubtful)]

    @property
    def is_advice_pending(self) -> bool:
        """It is not let in, and a worker is looking for what would be."""
        pending = any(one.is_advice_pending for one in self.findings)
        return pending and self.action is not Action.ADMIT

    def _say(self, findings: Iterable[Finding]) -> list[str]:
        """Return each message once, with the parts it is about unless it is about all of them."""
        labels: dict[str, list[str]] = {}
        for one in findings:
            labels.setdefault(one.message, []).append(one.case.label if one.case else "")
        if len({one.message for one in self.findings}) == 1:
            return list(labels)
        return [
            f"{', '.join(parts[:_MAX_LABELS])}: {text}" if all(parts) else text
            for text, parts in labels.items()
        ]

    def awaited_advice(self) -> list[str]:
        """Return the ids of answers that will soon name a batch for a refusal."""
        return [
            one.job_id
            for finding in self._lacking()
            for one in (finding.own_answer(),)
            if one is not None and one.is_advice_pending
        ]

    def batch_questions(self) -> dict[str, Question]:
        """Return the questions, by key, whose answers let a refusal name the largest batches."""
        asked = (one.batch_question() for one in self._lacking())
        questions = {one.key: one for one in asked if one is not None}
        return dict(islice(questions.items(), _MAX_BATCHES))

    def with_batches(self, batches: Mapping[str, MaxBatch]) -> Judgement:
        """Return the same with the answers to those questions."""
        lacking = self._lacking()
        findings = [
            one.with_batch(batches, self.cluster) if one in lacking else one
            for one in self.findings
        ]
        return replace(self, findings=findings)

    def _lacking(self) -> list[Finding]:
        """Return the findings that a refusal is about and that lack a batch."""
        if self.action is not Action.REJECT:
            return []
        return [one for one in self.findings if one.decision is self.decision and one.lacks_batch]


def judge(
    findings: Sequence[Finding],
    policy: Policy,
    *,
    cluster: Sequence[GpuSpec] = (),
    waited_seconds: float = 0.0,
) -> Judgement:
    """Combine what is known about the parts of an object: the worst of them decides."""
    worst = min(findings, key=lambda one: one.decision)
    action = policy.choose(worst.decision, worst.fault, waited_seconds)
    return Judgement(decision=worst.decision, action=action, findings=findings, cluster=cluster)
