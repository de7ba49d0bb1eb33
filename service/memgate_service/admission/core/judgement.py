"""What is known of a job's memory, and the operator's policy -> let it in, refuse it or hold it.

Pure: no clock, no queue. Every sentence is for the person who typed ``kubectl apply``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from memgate.contract import Work
from memgate.decision import Decision
from memgate.gpus import CATALOGUE, GpuSpec
from memgate.max_batch import MaxBatch
from memgate.report import Estimate
from memgate.units import format_size
from memgate.verdict import decide
from memgate_service.admission.core.settings import AdmissionSettings, Policy
from memgate_service.admission.kubernetes.cases import Case
from memgate_service.admission.kubernetes.places import Place

#: pods that are named before what is said of them
_MAX_LABELS = 3

#: questions for largest batches about one object: its message has room for a few
_MAX_BATCHES = 4

#: after how long to ask again what is being found out
RETRY_SECONDS = 3


class Known(NamedTuple):
    """An answer."""

    job_id: str
    estimate: Estimate
    #: a worker looks for the largest batch, to add it; the decision stands
    is_advice_pending: bool = False


class Unknown(NamedTuple):
    """There will be no answer: the job could not be run."""

    job_id: str
    why: str


class NoAnswer(NamedTuple):
    """There is no answer yet."""

    job_id: str
    why: str


Said = Known | Unknown | NoAnswer


class Outcome(IntEnum):
    """Worst first, so that the pods of an object combine with ``min``."""

    REJECT = 0
    NO_ANSWER = 1
    UNCERTAIN = 2
    ADMIT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is to be said of a pod."""

    outcome: Outcome
    message: str
    #: the pod; None if it is about all of an object
    case: Case | None = None
    #: the answer it rests on, if there is one
    known: Known | None = None
    #: what was said about it, by generation of GPU
    said: Mapping[str, Said] = field(default_factory=dict)
    #: the largest batch that fits would help, and is not known
    lacks_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is to be done with an object."""

    outcome: Outcome
    #: what the policy makes of it
    action: Policy
    findings: Sequence[Finding] = field(default=())

    @property
    def message(self) -> str:
        """What speaks against it."""
        return "; ".join(self._tell([one for one in self.findings if one.outcome is self.outcome]))

    @property
    def warnings(self) -> list[str]:
        """What a person should know although it is let in."""
        doubtful = [
            one
            for one in self.findings
            if one.outcome is not Outcome.ADMIT or (one.case and one.case.is_unplaced)
        ]
        return [f"memgate: {text}" for text in self._tell(doubtful)]

    def _tell(self, findings: Iterable[Finding]) -> list[str]:
        """Return what is said, once each; of some of an object's pods, with where they stand."""
        pods: dict[str, list[str]] = {}
        for one in findings:
            pods.setdefault(one.message, []).append(one.case.pod.label if one.case else "")
        if len({one.message for one in self.findings}) == 1:
            return list(pods)
        return [
            f"{', '.join(labels[:_MAX_LABELS])}: {text}" if all(labels) else text
            for text, labels in pods.items()
        ]

    def awaited_advice(self) -> list[str]:
        """Return the ids of answers that will soon tell a batch that a refusal lacks."""
        lacking = self._lacking()
        return [
            known.job_id
            for one in self.findings
            if one.message in lacking and one.case is not None
            for known in one.said.values()
            if isinstance(known, Known) and known.is_advice_pending
            if any(_is_about(known.estimate, place) for place in one.case.places)
        ]

    def batch_questions(self) -> dict[str, Work]:
        """Return what to ask, by id, so that a refusal can tell the largest batches that fit."""
        works = (case.batch_question() for case in self._lacking().values())
        return {work.id(): work for work in works}

    def with_batches(
        self, batches: Mapping[str, MaxBatch], cluster: tuple[GpuSpec, ...]
    ) -> Judgement:
        """Return the same with what was answered to those questions."""
        said = {one.message: one.said for one in self.findings}
        messages = {
            message: find(case, said[message], cluster, batch).message
            for message, case in self._lacking().items()
            if (batch := batches.get(case.batch_question().id())) is not None
        }
        findings = [
            replace(one, message=messages.get(one.message, one.message)) for one in self.findings
        ]
        return replace(self, findings=findings)

    def _lacking(self) -> dict[str, Case]:
        """Return what is said in a refusal and lacks a batch, a few, each with a pod it is about.

        What is said alike of two pods is of the same job in the same room.
        """
        if self.action != "reject" or self.outcome is Outcome.NO_ANSWER:
            return {}
        found: dict[str, Case] = {}
        for one in self.findings:
            if one.outcome is self.outcome and one.lacks_batch and one.case is not None:
                found.setdefault(one.message, one.case)
        return dict(islice(found.items(), _MAX_BATCHES))


def judge(findings: Sequence[Finding], settings: AdmissionSettings) -> Judgement:
    """Combine what is to be said of the pods of an object."""
    outcome = min(finding.outcome for finding in findings)
    action: Policy = {
        Outcome.REJECT: "reject",
        Outcome.NO_ANSWER: settings.admission_on_timeout,
        Outcome.UNCERTAIN: settings.admission_on_uncertain,
        Outcome.ADMIT: "admit",
    }[outcome]
    return Judgement(outcome=outcome, action=action, findings=findings)


def find(
    case: Case,
    said: Mapping[str, Said],
    cluster: tuple[GpuSpec, ...],
    batch: MaxBatch | None = None,
) -> Finding:
    """Say of a pod what the answers say of its places; they come by generation.

    ``batch`` is the answer to the case's question for it, if that was put.
    """
    for one in said.values():
        if isinstance(one, NoAnswer):
            message = f"no answer yet: {one.why} (estimate {one.job_id})"
            return Finding(case=case, outcome=Outcome.NO_ANSWER, message=message)
    for one in said.values():
        if isinstance(one, Unknown):
            message = f"it is not known whether this fits: {one.why} (estimate {one.job_id})"
            return Finding(case=case, outcome=Outcome.UNCERTAIN, message=message)
    if case.doubt:
        message = f"it is not known whether this fits: {case.doubt}"
        return Finding(case=case, outcome=Outcome.UNCERTAIN, message=message)
    known = {name: one for name, one in said.items() if isinstance(one, Known)}
    if len(case.places) == 1:
        finding = _of_one(case, known[case.places[0].gpu.generation], cluster, batch)
    else:
        finding = _of_several(case, known, cluster, batch)
    return replace(finding, said=said)


def _of_one(
    case: Case, known: Known, cluster: tuple[GpuSpec, ...], batch: MaxBatch | None
) -> Finding:
    (place,) = case.places
    estimate = known.estimate
    if case.is_unplaced:
        message = (
            f"needs {format_size(estimate.upper_bound_bytes)} at most; no GPU is named, so it was"
            " not checked: add the node selector nvidia.com/gpu.product, or the annotation"
            " memgate.dev/gpu"
        )
        return Finding(case=case, outcome=Outcome.ADMIT, message=message, known=known)
    decision = decide_place(estimate, place)
    if decision is Decision.ADMIT:
        message = f"fits: {_needs(estimate)}, {_has(place)}"
        return Finding(case=case, outcome=Outcome.ADMIT, message=message, known=known)
    said = f"{_needs(estimate)}, {_has(place)}"
    size = _batch_size(estimate, place, batch)
    fitting = _hurried_batch(estimate, place) if size is None else _batch(case, size)
    advice = f"{_declare(place, estimate)}{fitting}{_smallest(estimate, cluster)}"
    end = f"{advice} Estimate {known.job_id}."
    doubt = ""
    if decision is Decision.REJECT:
        outcome, message = Outcome.REJECT, f"does not fit: {said}.{end}"
    else:
        reason = estimate.reasons[0]
        doubt = "" if reason.code in ("FITS", "WITHIN_THE_MARGIN") else f" ({reason.message})"
        outcome, message = Outcome.UNCERTAIN, f"may not fit: {said}{doubt}.{end}"
    lacks = size is None and not doubt
    return Finding(case=case, outcome=outcome, message=message, known=known, lacks_batch=lacks)


def _of_several(
    case: Case, known: Mapping[str, Known], cluster: tuple[GpuSpec, ...], batch: MaxBatch | None
) -> Finding:
    """It may run in any of several places: it should fit in all, and must fit in one."""
    decisions = {
        place: decide_place(known[place.gpu.generation].estimate, place) for place in case.places
    }
    # What it needs differs a little from one generation to the next: told, and filled in, is most.
    most = max(known.values(), key=lambda one: one.estimate.upper_bound_bytes)
    fitting = [place for place, decision in decisions.items() if decision is Decision.ADMIT]
    others = [place for place in decisions if place not in fitting]
    if not others:
        message = f"fits on all of {_names(fitting)}: {_needs(most.estimate)}"
        return Finding(case=case, outcome=Outcome.ADMIT, message=message, known=most)
    have = ", ".join(dict.fromkeys(_has(place, among_others=True) for place in others))
    said = f"{_needs(most.estimate)}, {have}."
    end = f" Estimate {most.job_id}."
    if max(decisions.values()) is Decision.REJECT:
        place = case.roomiest
        estimate = known[place.gpu.generation].estimate
        size = _batch_size(estimate, place, batch)
        advice = f"{_declare(place, estimate)}{_batch(case, size, place.gpu.name)}"
        elsewhere = _smallest(most.estimate, cluster)
        message = f"does not fit on any of {_names(others)}: {said}{advice}{elsewhere}{end}"
        return Finding(
            case=case, outcome=Outcome.REJECT, message=message, known=most, lacks_batch=size is None
        )
    where = f"fits on {_names(fitting)}, but " if fitting else ""
    message = (
        f"{where}may not fit on {_names(others)}: {said} Name the GPU it shall run on:"
        f" node selector nvidia.com/gpu.product.{end}"
    )
    return Finding(case=case, outcome=Outcome.UNCERTAIN, message=message, known=most)


def _names(places: Iterable[Place]) -> str:
    return ", ".join(dict.fromkeys(place.gpu.name for place in places))


def decide_place(estimate: Estimate, place: Place) -> Decision:
    """Say whether a job fits in a place, from an answer about another GPU of its generation."""
    segments = estimate.required_bytes - estimate.context_bytes
    missing = place.gpu.memory_bytes - place.capacity_bytes
    decision = decide(segments, place.gpu, already_used_bytes=missing).decision
    has_doubts = (
        estimate.decision == "uncertain" and estimate.reasons[0].code != "WITHIN_THE_MARGIN"
    )
    return min(decision, Decision.UNCERTAIN) if has_doubts else decision


def _needs(estimate: Estimate) -> str:
    least, most = format_size(estimate.required_bytes), format_size(estimate.upper_bound_bytes)
    return f"needs {least} to {most} at its peak"


def _has(place: Place, *, among_others: bool = False) -> str:
    size = format_size(place.capacity_bytes)
    if not place.is_part:
        return f"{place.gpu.name} has {size}"
    of_it = f" of {place.gpu.name}" if among_others and place.is_share else ""
    return f"{place.declared_by} declares {size}{of_it}"


def _declare(place: Place, estimate: Estimate) -> str:
    """Say how much to declare, if the GPU has that."""
    if not place.is_part or estimate.upper_bound_bytes > place.gpu.memory_bytes:
        return ""
    return f" Declare {place.as_declared(estimate.upper_bound_bytes)} or more."


def _batch_size(estimate: Estimate, place: Place, batch: MaxBatch | None) -> int | None:
    """Return the largest batch that fits in a place, 0 if none does; None if it is not known."""
    if batch is not None:
        is_too_large = batch.tried[0].decision == "reject"  # else there are doubts at any size
        return batch.batch_size or (0 if is_too_large else None)
    return estimate.largest_batch_size if _is_about(estimate, place) else None


def _is_about(estimate: Estimate, place: Place) -> bool:
    return not place.is_part and estimate.capacity_bytes == place.gpu.memory_bytes


def _hurried_batch(estimate: Estimate, place: Place) -> str:
    """Say which batch fits, where there was no time for the largest."""
    said = estimate.why("SMALLER_BATCH_FITS") if _is_about(estimate, place) else ""
    return f" {said[0].upper()}{said[1:]}." if said else ""


def _batch(case: Case, size: int | None, where: str = "") -> str:
    if size is None:
        return ""
    on_it = f" on {where}" if where else ""
    if size == 0:
        return f" No batch fits{on_it} (now {case.job.batch_size})."
    return f" Largest batch that fits{on_it}: {size} (now {case.job.batch_size})."


def _smallest(estimate: Estimate, cluster: tuple[GpuSpec, ...]) -> str:
    names = [gpu.name for gpu in cluster]
    if not estimate.fits_on:
        return " It fits on no GPU we know of."
    fitting = [name for name in estimate.fits_on if not names or name in names]
    smallest = (fitting or estimate.fits_on)[0]
    said = f"mallest GPU that fits: {smallest} ({format_size(CATALOGUE[smallest].memory_bytes)})."
    return f" S{said}" if fitting else f" It fits on no GPU of this cluster; s{said}"
