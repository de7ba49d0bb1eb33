"""Jobs that have ended -> an event for the owner: asked, predicted, used, what would have sufficed.

As ``seff`` tells users of Slurm. What was used is in ``ends``; where nobody measured it, the event
says so. What a job took that ended well is reported as the outcome of its estimate, once: the
event, which has a name of its own, says whether that was done before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from memgate.client.clients import Client
from memgate.client.errors import ClientError
from memgate.decision import Decision
from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate.units import format_size
from memgate_service.admission.core.answers import KnownAnswer
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.rules import Mode, PolicyChoice
from memgate_service.admission.kubernetes.background import find_ignored, is_owned
from memgate_service.admission.kubernetes.cases import PodCase, is_annotated
from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.controller import find_place
from memgate_service.admission.kubernetes.ends import (
    End,
    Used,
    find_end,
    find_pods_of,
    find_used,
    keep_little,
)
from memgate_service.admission.kubernetes.events import tell_used
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.objects import find_pods
from memgate_service.admission.kubernetes.places import count_gpus
from memgate_service.admission.kubernetes.policy_resources import PolicyResources
from memgate_service.admission.kubernetes.rounds import Done, Listed, Rounds
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_worker.logs import write_line

#: API servers forget events after an hour: what ended earlier may have been told
_RECENT_SECONDS = 2700.0

#: the longest between two looks
_INTERVAL_SECONDS = 60.0

#: how often an answer that is not there is asked for
_MAX_TRIES = 5


class PredictedUse(NamedTuple):
    """What was known about a job when it was submitted."""

    asked: str
    capacity_bytes: int
    """Of the GPU that it asked for; 0 if it named none."""
    needs_bytes: int
    """0 if there is no estimate."""
    estimate: str


class FinishedJobs(Rounds):
    """Tells owners what their jobs took."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        settings: AdmissionSettings,
        policies: PolicyResources | None = None,
    ) -> None:
        super().__init__(cluster, client, settings, policies)
        self._running: set[str] = set()
        self._told: set[str] = set()
        self._num_tries: Counter[str] = Counter()

    @property
    def every_seconds(self) -> float:  # type: ignore[override]
        """How often; together with the audit, or more often."""
        return min(_INTERVAL_SECONDS, self._settings.admission_audit_seconds)

    def _go_round(self) -> Done:
        ignored = find_ignored(self._cluster, self._settings)
        ours: list[Listed] = []
        made: list[JsonObject] = []
        for one in self._list_objects():
            if is_owned(one.document, but="CronJob"):  # which never ends itself
                made.append(keep_little(one.document))
            elif _is_described(one) and _namespace(one) not in ignored:
                ours.append(one)
        for one in ours:
            end = find_end(one.document)
            if end is None:
                self._running.add(_uid(one))
            elif _uid(one) not in self._told and self._is_recent(one, end):
                self._tell(one, end, made)
        existing = set(map(_uid, ours))
        self._running &= existing - self._told
        self._told &= existing
        return Done()

    def _is_recent(self, one: Listed, end: End) -> bool:
        if _uid(one) in self._running:  # it ran when this program looked last
            return True
        now = datetime.now(UTC)
        return end.at is not None and (now - end.at).total_seconds() < _RECENT_SECONDS

    def _tell(self, one: Listed, end: End, made: Sequence[JsonObject]) -> None:
        chosen = self._choose_rule(find_place(one.kind, one.document))
        judgement = self._judge_again(one, chosen)
        if _is_open(judgement) and self._num_tries[_uid(one)] < _MAX_TRIES:
            self._num_tries[_uid(one)] += 1
            return
        predicted = read_prediction(judgement)
        used = find_used([one.document, *find_pods_of(_uid(one), made)])
        self._told.add(_uid(one))
        del self._num_tries[_uid(one)]
        if chosen.is_exempt:
            return
        if chosen.mode is Mode.AUDIT:  # nothing is said; it counts if this program saw it run
            is_new = _uid(one) in self._running
        else:
            message = describe_use(end, predicted, used, self._settings.gpus)
            is_new = self._try_event(tell_used(one.document, message))
        if is_new and used is not None and predicted.estimate and not end.is_failed:
            self._report(predicted.estimate, used)

    def _judge_again(self, one: Listed, chosen: PolicyChoice) -> Judgement | None:
        pods = find_pods(one.document, one.shape)
        try:
            return self._judge(_namespace(one), pods, self._policy(chosen))
        except InputError:
            return None

    def _report(self, estimate: str, used: Used) -> None:
        try:
            self._client.report_outcome(
                estimate, used.num_bytes, is_reserved_only=used.is_reserved_only
            )
        except ClientError as error:
            write_line("finished", {"estimate": estimate, "error": error.message})


def _is_open(judgement: Judgement | None) -> bool:
    """Say whether there is no answer yet: it has expired, and is being made again."""
    return judgement is not None and judgement.decision is Decision.UNKNOWN


def read_prediction(judgement: Judgement | None) -> PredictedUse:
    """Return what a judgement says about the largest of an object's jobs."""
    known = [
        (one.case, one.known)
        for one in (judgement.findings if judgement is not None else ())
        if isinstance(one.case, PodCase) and one.known is not None
    ]
    if not known:
        return PredictedUse("a GPU", 0, 0, "")
    case, answer = max(known, key=_needs)
    names = ", ".join(dict.fromkeys(place.gpu.name for place in case.places)) or "a GPU"
    number = count_gpus(case.pod)
    return PredictedUse(
        asked=f"{number} x {names}" if number > 1 else names,
        capacity_bytes=max((place.capacity_bytes for place in case.places), default=0),
        needs_bytes=answer.estimate.needs_bytes,
        estimate=answer.job_id,
    )


def _needs(known: tuple[PodCase, KnownAnswer]) -> int:
    return known[1].estimate.needs_bytes


def describe_use(
    end: End, predicted: PredictedUse, used: Used | None, cards: Sequence[GpuSpec]
) -> str:
    """Say what a job asked for, was predicted to need, and took; cards: the smallest first."""
    asked = predicted.asked
    if predicted.capacity_bytes:
        asked += f" ({format_size(predicted.capacity_bytes)})"
    needs = format_size(predicted.needs_bytes) if predicted.needs_bytes else "nothing"
    line = f"asked for {asked}, predicted {needs}, used {_tell_amount(used)}"
    if end.is_failed:
        line = f"it failed, perhaps before its peak; {line}"
    is_measured = used is not None and not used.is_reserved_only and not end.is_failed
    num_bytes = used.num_bytes if used is not None and is_measured else predicted.needs_bytes
    enough = _find_enough(predicted.capacity_bytes, num_bytes, cards)
    if not enough:
        return line
    return f"{line}; {enough} would have sufficed" + ("" if is_measured else ", by the prediction")


def _tell_amount(used: Used | None) -> str:
    if used is None:
        return "not measured"
    amount = format_size(used.num_bytes)
    return f"{amount} by PyTorch's allocator" if used.is_reserved_only else amount


def _find_enough(capacity_bytes: int, num_bytes: int, cards: Sequence[GpuSpec]) -> str:
    """Return the smallest GPU of the cluster that has so much, if it is smaller than the job's.

    Where the cluster's are not known, the amount.
    """
    if not num_bytes or num_bytes >= capacity_bytes:
        return ""
    if not cards:
        return format_size(num_bytes)
    fitting = (card for card in cards if card.memory_bytes >= num_bytes)
    smallest = next(fitting, None)
    is_smaller = smallest is not None and smallest.memory_bytes < capacity_bytes
    return smallest.name if smallest is not None and is_smaller else ""


def _is_described(one: Listed) -> bool:
    return any(map(is_annotated, find_pods(one.document, one.shape)))


def _namespace(one: Listed) -> str:
    return str(as_object(one.document.get("metadata")).get("namespace", ""))


def _uid(one: Listed) -> str:
    return str(as_object(one.document.get("metadata")).get("uid", ""))
