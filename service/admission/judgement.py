"""What is known of a job's memory, and the operator's policy -> let it in, refuse it or hold it.

Pure: no clock, no queue. Every sentence is for the person who typed ``kubectl apply``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from memgate.gpus import CATALOGUE, GpuSpec
from memgate.report import Estimate
from memgate.units import MIB, format_size
from memgate.verdict import Decision, decide
from service.admission.cases import Case
from service.admission.places import Place
from service.admission.settings import AdmissionSettings, Policy

#: after how long to ask again what is being found out
RETRY_SECONDS = 3


class Known(NamedTuple):
    """An answer."""

    job_id: str
    estimate: Estimate


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
        worst = [one.message for one in self.findings if one.outcome is self.outcome]
        return "; ".join(dict.fromkeys(worst))

    @property
    def warnings(self) -> list[str]:
        """What a person should know although it is let in."""
        return list(
            dict.fromkeys(
                f"memgate: {one.message}"
                for one in self.findings
                if one.outcome is not Outcome.ADMIT or (one.case and one.case.is_unplaced)
            )
        )


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


def find(case: Case, said: Mapping[str, Said], cluster: tuple[GpuSpec, ...]) -> Finding:
    """Say of a pod what the answers say of its places; they come by generation."""
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
        return _of_one(case, case.places[0], known[case.places[0].gpu.generation], cluster)
    return _of_several(case, known)


def _of_one(case: Case, place: Place, known: Known, cluster: tuple[GpuSpec, ...]) -> Finding:
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
    advice = _advice(case, place, estimate, cluster)
    end = f" Estimate {known.job_id}."
    if decision is Decision.UNCERTAIN:
        reason = estimate.reasons[0]
        doubt = "" if reason.code in ("FITS", "WITHIN_THE_MARGIN") else f" ({reason.message})"
        message = f"may not fit: {_needs(estimate)}, {_has(place)}{doubt}.{advice}{end}"
        return Finding(case=case, outcome=Outcome.UNCERTAIN, message=message, known=known)
    message = f"does not fit: {_needs(estimate)}, {_has(place)}.{advice}{end}"
    return Finding(case=case, outcome=Outcome.REJECT, message=message, known=known)


def _of_several(case: Case, known: Mapping[str, Known]) -> Finding:
    """It may run in any of several places: it should fit in all, and must fit in one."""
    decisions = {
        place.gpu.name: decide_place(known[place.gpu.generation].estimate, place)
        for place in case.places
    }
    first = next(iter(known.values()))
    needs = _needs(first.estimate)
    fitting = [name for name, decision in decisions.items() if decision is Decision.ADMIT]
    others = [name for name in decisions if name not in fitting]
    if not others:
        message = f"fits on all of {', '.join(fitting)}: {needs}"
        return Finding(case=case, outcome=Outcome.ADMIT, message=message, known=first)
    end = f" Estimate {first.job_id}."
    if max(decisions.values()) is Decision.REJECT:
        batch = _batch(case, first.estimate)
        elsewhere = _smallest(first.estimate, ())
        message = f"does not fit on any of {', '.join(others)}: {needs}.{batch}{elsewhere}{end}"
        return Finding(case=case, outcome=Outcome.REJECT, message=message, known=first)
    where = f"fits on {', '.join(fitting)}, but" if fitting else ""
    message = (
        f"{where} may not fit on {', '.join(others)}: {needs}. Name the GPU it shall run on:"
        f" node selector nvidia.com/gpu.product.{end}"
    ).strip()
    return Finding(case=case, outcome=Outcome.UNCERTAIN, message=message, known=first)


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


def _has(place: Place) -> str:
    if place.declared_bytes is not None:
        return f"{place.declared_by} declares {format_size(place.capacity_bytes)}"
    return f"{place.gpu.name} has {format_size(place.capacity_bytes)}"


def _advice(case: Case, place: Place, estimate: Estimate, cluster: tuple[GpuSpec, ...]) -> str:
    """Say what would make it fit, as far as it is known."""
    raise_to = ""
    if place.declared_bytes is not None and estimate.upper_bound_bytes <= place.gpu.memory_bytes:
        raise_to = f" Declare {needed_mib(estimate)} MiB or more."
        return raise_to
    return f"{_batch(case, estimate)}{_smallest(estimate, cluster)}"


def _batch(case: Case, estimate: Estimate) -> str:
    if estimate.largest_batch_size is None:
        return ""
    return f" Largest batch that fits: {estimate.largest_batch_size} (now {case.job.batch_size})."


def _smallest(estimate: Estimate, cluster: tuple[GpuSpec, ...]) -> str:
    names = [gpu.name for gpu in cluster]
    fitting = [name for name in estimate.fits_on if not names or name in names]
    if not fitting:
        return " It fits on no GPU of this cluster." if names else " It fits on no GPU we know of."
    size = format_size(CATALOGUE[fitting[0]].memory_bytes)
    return f" Smallest GPU that fits: {fitting[0]} ({size})."


def needed_mib(estimate: Estimate) -> int:
    """Return what a job needs at most, in MiB."""
    return -(-estimate.upper_bound_bytes // MIB)
