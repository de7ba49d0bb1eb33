"""What exists already -> judged in the background: the audit, events and PolicyReports.

Nothing is changed. Whatever passed the webhooks without an answer, or before there were any, is
found here; so is what has a GPU and no description, which the API server may not even ask about.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from memgate.audit import AuditEntry
from memgate.client.errors import ClientError
from memgate.errors import InputError
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.rules import PolicyChoice
from memgate_service.admission.core.sequence import Rules, run
from memgate_service.admission.kubernetes.cases import is_annotated
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.controller import find_place
from memgate_service.admission.kubernetes.ends import find_end
from memgate_service.admission.kubernetes.events import tell_late
from memgate_service.admission.kubernetes.holding import HELD
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.judging import judge_pods
from memgate_service.admission.kubernetes.modes import (
    DECISIONS,
    EXEMPT,
    UNDESCRIBED,
    WRONG,
    describe,
    find_near_misses,
    make_policy,
)
from memgate_service.admission.kubernetes.objects import SHAPES, Pod, find_pods
from memgate_service.admission.kubernetes.places import asks_for_gpu
from memgate_service.admission.kubernetes.rehearsals import RehearsingRounds
from memgate_service.admission.kubernetes.reports import (
    KIND,
    LABELS,
    NAME,
    OLD_VERSION,
    JudgedObject,
    make_report,
)
from memgate_service.admission.kubernetes.rounds import Done, Listed
from memgate_service.admission.kubernetes.settings import AdmissionSettings, Shape, split
from memgate_worker.logs import write_line

#: namespaces that want to be left alone
_IGNORED = "memgate.dev/admission=ignore"

#: objects without an answer in one round: others wait for workers, too
_MAX_UNANSWERED = 50

#: records in one request
_BATCH = 500

_DONE_BY = {Action.REJECT: "refused", Action.HOLD: "held"}


class BackgroundAudit(RehearsingRounds):
    """Judges what exists."""

    _next: str = ""
    """What the last round left out, by ``uid``: the next one begins with it."""

    @property
    def every_seconds(self) -> float:  # type: ignore[override]
        """How often; what has no answer yet is found in the next round."""
        return self._settings.admission_audit_seconds

    def _go_round(self) -> Done:
        ignored = find_ignored(self._cluster, self._settings)
        judged: dict[str, list[JudgedObject]] = defaultdict(list)
        num_open = 0
        existing = _begin_with(self._next, self._existing())
        self._next = ""
        for kind, shape, _, document in existing:
            namespace = str(as_object(document.get("metadata")).get("namespace", ""))
            if namespace in ignored:
                continue
            if num_open >= _MAX_UNANSWERED and any(map(is_annotated, find_pods(document, shape))):
                self._next = self._next or _uid(document)
                continue
            record = self._look_at(kind, shape, document)
            if record:
                judged[namespace].append(JudgedObject(document, record))
                num_open += record["decision"] == "unanswered"
        self._record([one for all_of_one in judged.values() for one in all_of_one])
        self._report(judged, is_whole=not self._next)
        return Done()

    def _existing(self) -> Iterator[Listed]:
        """Yield what is not over, and was not made by another object."""
        for one in self._list_objects():
            if not is_past(one.document) and not is_owned(one.document):
                yield one

    def _look_at(self, kind: str, shape: Shape, document: JsonObject) -> dict[str, Any]:
        """Return the audit's record of an object; empty if it is none of our business."""
        place = find_place(kind, document)
        chosen = self._choose_rule(place)
        said = self._judge_existing(shape, document, chosen, place.namespace)
        if not said:
            return {}
        near = find_near_misses(document, shape)
        metadata = as_object(document.get("metadata"))
        return {
            "gate": "kubernetes",
            "namespace": place.namespace,
            "kind": kind,
            "name": str(metadata.get("name", "")),
            "job": str(metadata.get("uid", "")),
            "mode": str(chosen.mode),
            "rule": chosen.rule,
            "done": "noted",
            **({"near_miss": near[0]} if near else {}),
            **said,
        }

    def _judge_existing(
        self, shape: Shape, document: JsonObject, chosen: PolicyChoice, namespace: str
    ) -> dict[str, Any]:
        pods = find_pods(document, shape)
        if not any(map(is_annotated, pods)):
            if not any(map(asks_for_gpu, pods)):
                return {}
            return self._rehearse(document, pods, chosen) or _tell_undescribed(chosen)
        if chosen.is_exempt:
            return {"decision": EXEMPT}
        policy = self._policy(chosen)
        rules = Rules(policy=policy, cluster=self._settings.gpus)
        try:
            steps = judge_pods(namespace, pods, rules, is_final=False)
            judgement = run(steps, self._asking_for(namespace))
        except InputError as error:
            would = _DONE_BY.get(policy.mistaken, "")
            return {"decision": DECISIONS[WRONG], "why": error.message, "would": would}
        return _tell(judgement) if judgement is not None else {}

    def _rehearse(
        self, document: JsonObject, pods: tuple[Pod, ...], chosen: PolicyChoice
    ) -> dict[str, Any]:
        """Return what a rehearsal beside the job has shown; empty if none was, or none is wanted.

        What is held for its rehearsal is another program's business.
        """
        if chosen.is_exempt or chosen.on.get("undescribed") != "rehearse" or _is_kept(document):
            return {}
        result = self._rehearsals.look_at(document, pods, since=datetime.now(UTC)).result
        if result is None or not result.is_known:
            return {}
        would = "refused" if result.is_refused else ""
        said = {"decision": result.decision, "why": result.message, "would": would}
        return {**said, "gpu": result.gpu}

    def _policy(self, chosen: PolicyChoice) -> Policy:
        """Return the policy of the webhooks: an answer that is not there yet is not waited for."""
        return replace(make_policy(self._settings, chosen), patience_seconds=0.0)

    def _record(self, judged: Sequence[JudgedObject]) -> None:
        """Send the records, and events to those who were let in although they do not fit."""
        entries = [_entry(one) for one in judged if one.record["decision"] != "unanswered"]
        try:
            for first in range(0, len(entries), _BATCH):
                self._client.record_decisions(entries[first : first + _BATCH])
        except ClientError as error:
            write_line("background", {"error": f"the audit takes no records: {error.message}"})
        for one in judged:
            event = None if _is_kept(one.document) else tell_late(one.document, one.record)
            if event is not None:
                self._try_event(event)

    def _report(self, judged: Mapping[str, Sequence[JudgedObject]], *, is_whole: bool) -> None:
        resource = self._cluster.find(KIND)
        if resource is None:
            return
        if resource.api_version == OLD_VERSION:  # whose results have other fields
            write_line("background", {"error": f"{KIND}: {OLD_VERSION} is too old"})
            return
        for namespace, found in judged.items():
            report = make_report(resource.api_version, namespace, found, int(time.time()))
            try:
                self._cluster.apply(resource, report)
            except ClusterError as error:
                write_line("background", {"namespace": namespace, "error": error.message})
        if not is_whole:  # the rest is looked at in the next round
            return
        selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
        for document in self._cluster.list(resource, selector):
            metadata = as_object(document.get("metadata"))
            namespace = str(metadata.get("namespace", ""))
            if namespace not in judged and metadata.get("name") == NAME:
                self._cluster.delete(resource, NAME, namespace)


def find_ignored(cluster: Cluster, settings: AdmissionSettings) -> set[str]:
    """Return the namespaces that are left alone: by the operator, or by their label."""
    labelled = cluster.list(Resource("v1", "namespaces"), _IGNORED)
    named = (str(as_object(one.get("metadata")).get("name", "")) for one in labelled)
    return {*split(settings.admission_excluded_namespaces), *named}


def _begin_with(uid: str, listed: Iterable[Listed]) -> list[Listed]:
    """Return objects, the one with this ``uid`` first and those before it last."""
    found = list(listed)
    uids = [_uid(one.document) for one in found]
    first = uids.index(uid) if uid in uids else 0
    return found[first:] + found[:first]


def _uid(document: JsonObject) -> str:
    return str(as_object(document.get("metadata")).get("uid", ""))


def is_owned(document: JsonObject, *, but: str = "") -> bool:
    """Say whether something else that is judged, unless of the kind ``but``, made an object."""
    owners = map(as_object, as_list(as_object(document.get("metadata")).get("ownerReferences")))
    known = {kind.partition(".")[0] for kind in SHAPES} | {"ReplicaSet"}
    return any(owner.get("kind") in known - {but} for owner in owners)


def is_past(document: JsonObject) -> bool:
    """Say whether an object has ended, or is about to."""
    is_going = "deletionTimestamp" in as_object(document.get("metadata"))
    return is_going or find_end(document) is not None


def _is_kept(document: JsonObject) -> bool:
    """Say whether an object is held: its owner is told by the controller that releases it."""
    return HELD in as_object(as_object(document.get("metadata")).get("labels"))


def _tell_undescribed(chosen: PolicyChoice) -> dict[str, Any]:
    is_refused = chosen.on.get("undescribed", "admit") == "reject" and not chosen.is_exempt
    why = "it asks for a GPU and has no description: the annotation memgate.dev/job"
    return {"decision": UNDESCRIBED, "why": why, "would": "refused" if is_refused else ""}


def _tell(judgement: Judgement) -> dict[str, Any]:
    decision = DECISIONS.get(judgement.decision, judgement.decision)
    return {
        **describe(judgement),
        "decision": str(decision),
        "why": judgement.message,
        "would": _DONE_BY.get(judgement.action, ""),
    }


def _entry(one: JudgedObject) -> AuditEntry:
    """Return the record; the same finding about the same object is stored once."""
    record = one.record
    same = [record.get(name) for name in ("job", "decision", "mode", "rule", "estimate")]
    generation = as_object(one.document.get("metadata")).get("generation", 1)
    name = sha256(repr((same, generation)).encode()).hexdigest()[:32]
    return AuditEntry.model_validate({"id": name, "at": time.time()} | dict(record))
