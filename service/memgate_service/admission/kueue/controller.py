"""Workloads of Kueue that wait for an admission check of ours -> Ready, Retry or Rejected.

An AdmissionCheck whose ``controllerName`` is ours is answered by ``memgate controller --kueue``.
Kueue asks once it has reserved quota: by then it has chosen flavors, and their node labels tell on
which GPU a job will run. A check waits for its answer, with the quota, for as long as a webhook
would (``MEMGATE_ADMISSION_WAIT_SECONDS``); then ``MEMGATE_ADMISSION_ON_TIMEOUT`` decides.

Not here: what a job needs (``judgement``), and starting or stopping it, which is Kueue's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from memgate.errors import InputError
from memgate_service.admission.core.judgement import Finding, Judgement, Outcome, judge
from memgate_service.admission.core.settings import AdmissionSettings, Shape
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.objects import (
    JOB,
    JsonObject,
    Pod,
    as_list,
    as_object,
    find_pods,
    select_node,
)
from memgate_service.admission.kubernetes.patches import Patch, put
from memgate_service.admission.kubernetes.rounds import Done, Rounds
from memgate_worker.logs import write_line

#: what an AdmissionCheck says if it is ours to answer
CONTROLLER = "memgate.dev/admission-check"

_GROUP = "kueue.x-k8s.io"
_SHAPE = Shape(templates=("/spec/podSets/*/template",))

#: when Kueue shall try again what had no answer in time; it gives the quota to others meanwhile
_REQUEUE_SECONDS = 60

_DONE = {"Ready": Done(num_released=1), "Pending": Done(num_waiting=1)}

#: flavors by name -> the labels of their nodes
Flavors = Mapping[str, Mapping[str, str]]


class Reply(NamedTuple):
    """What a check becomes, and why."""

    state: str
    message: str


class KueueController(Rounds):
    """Answers Kueue's admission checks."""

    def _go_round(self) -> Done:
        done = Done()
        checks = self._activate()
        workloads = self._cluster.find(f"Workload.{_GROUP}")
        if not checks or workloads is None:
            return done
        waiting = [
            (workload, index)
            for workload in self._cluster.list(workloads)
            for index in find_waiting(workload, checks)
        ]
        flavors = self._flavors() if waiting else {}
        for workload, index in waiting:
            done = done.plus(self._look_at(workloads, workload, index, flavors))
        return done

    def _activate(self) -> set[str]:
        """Return the names of our checks; Kueue uses none that its controller has not greeted."""
        resource = self._cluster.find(f"AdmissionCheck.{_GROUP}")
        names = set()
        for check in self._cluster.list(resource) if resource else ():
            if as_object(check.get("spec")).get("controllerName") != CONTROLLER:
                continue
            names.add(_name(check))
            patch = activate(check, datetime.now(UTC))
            if resource is not None and patch:
                self._cluster.patch(resource, check, patch, "status")
        return names

    def _flavors(self) -> Flavors:
        resource = self._cluster.find(f"ResourceFlavor.{_GROUP}")
        found = self._cluster.list(resource) if resource else []
        return {
            _name(flavor): as_object(as_object(flavor.get("spec")).get("nodeLabels"))
            for flavor in found
        }

    def _look_at(
        self, resource: Resource, workload: JsonObject, index: int, flavors: Flavors
    ) -> Done:
        now = datetime.now(UTC)
        reply = self._reply(workload, index, flavors, now)
        done = _DONE.get(reply.state, Done(num_refused=1))
        patch = write_reply(workload, index, reply, now)
        if not patch:
            return done
        namespace = as_object(workload.get("metadata")).get("namespace")
        line = {"kind": f"Workload.{_GROUP}", "namespace": namespace, "name": _name(workload)}
        try:
            self._cluster.patch(resource, workload, patch, "status")
        except ClusterError as error:  # changed or gone meanwhile
            write_line("judged", {**line, "error": error.message})
            return Done(num_waiting=1)
        write_line("judged", {**line, "action": reply.state, "message": reply.message})
        return done

    def _reply(self, workload: JsonObject, index: int, flavors: Flavors, now: datetime) -> Reply:
        namespace = str(as_object(workload.get("metadata")).get("namespace", ""))
        try:
            judgement = self._judge_pods(namespace, place_pods(workload, flavors))
        except InputError as error:
            return Reply("Rejected", f"memgate: {error.message}")
        except ClusterError as error:
            finding = Finding(outcome=Outcome.NO_ANSWER, message=error.message)
            judgement = judge([finding], self._settings)
        since = _checks(workload)[index].get("lastTransitionTime")
        return decide_state(judgement, now - _time(since, now), self._settings)


def find_waiting(workload: JsonObject, names: set[str]) -> Iterator[int]:
    """Yield which of a Workload's checks are to be answered now.

    Not before quota is reserved. What is being evicted is let alone: an answer at that moment would
    keep it out of the queue for ever. What runs already is not stopped by a check that came later.
    """
    conditions = as_list(as_object(workload.get("status")).get("conditions"))
    true = {one.get("type") for one in map(as_object, conditions) if one.get("status") == "True"}
    if "QuotaReserved" not in true or true & {"Evicted", "Finished", "Admitted"}:
        return
    for index, check in enumerate(_checks(workload)):
        if check.get("name") in names and check.get("state") == "Pending":
            yield index


def place_pods(workload: JsonObject, flavors: Flavors) -> tuple[Pod, ...]:
    """Return the pods of a Workload, with the labels of the nodes that Kueue chose for them."""
    admission = as_object(as_object(workload.get("status")).get("admission"))
    chosen = {
        one.get("name"): as_object(one.get("flavors")).values()
        for one in map(as_object, as_list(admission.get("podSetAssignments")))
    }
    sets = as_list(as_object(workload.get("spec")).get("podSets"))
    placed = []
    for pod in find_pods(workload, _SHAPE):
        index = int(pod.pointer.split("/")[3])
        labels: dict[str, str] = {}
        for flavor in chosen.get(as_object(sets[index]).get("name", "main"), ()):
            labels |= flavors.get(str(flavor), {})
        placed.append(_place(pod, labels))
    return tuple(placed)


def _place(pod: Pod, labels: Mapping[str, str]) -> Pod:
    """Put a pod on nodes with these labels; a choice of GPUs that it left is made by that."""
    chosen = select_node(labels)
    return replace(pod, nodes=tuple(dict.fromkeys((*chosen, *term) for term in pod.nodes)))


def decide_state(
    judgement: Judgement | None, waited: timedelta, settings: AdmissionSettings
) -> Reply:
    """Say what a check becomes, after it has waited for so long."""
    if judgement is None:
        return Reply("Ready", f"memgate: not checked: no pod template has the annotation {JOB}")
    message = f"memgate: {judgement.message}"
    if judgement.outcome is not Outcome.NO_ANSWER:
        states = {"admit": "Ready", "reject": "Rejected", "hold": "Pending"}
        return Reply(states[judgement.action], message)
    if waited < timedelta(seconds=settings.admission_wait_seconds):
        return Reply("Pending", message)
    states = {"admit": "Ready", "reject": "Retry", "hold": "Pending"}
    return Reply(states[judgement.action], message)


def write_reply(workload: JsonObject, index: int, reply: Reply, now: datetime) -> Patch:
    """Return what sets a check; empty if it is so already, and it fails if somebody was faster."""
    check = _checks(workload)[index]
    if (check.get("state"), check.get("message")) == reply:
        return []
    said: dict[str, Any] = {**check, "state": reply.state, "message": reply.message}
    if check.get("state") != reply.state:
        said["lastTransitionTime"] = _text(now)
    if reply.state == "Retry":
        said["requeueAfterSeconds"] = _REQUEUE_SECONDS
    version = as_object(workload.get("metadata")).get("resourceVersion")
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": f"/status/admissionChecks/{index}", "value": said},
    ]


def activate(check: JsonObject, now: datetime) -> Patch:
    """Return what tells Kueue that somebody answers a check; empty if it knows."""
    conditions = as_list(as_object(check.get("status")).get("conditions"))
    others = [one for one in conditions if as_object(one).get("type") != "Active"]
    known = [one for one in conditions if as_object(one).get("type") == "Active"]
    if known and as_object(known[0]).get("status") == "True":
        return []
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "memgate answers this check",
        "lastTransitionTime": _text(now),
        "observedGeneration": as_object(check.get("metadata")).get("generation", 1),
    }
    patch: Patch = []
    put(copy.deepcopy(dict(check)), patch, "/status/conditions", [*others, active])
    return patch


def _checks(workload: JsonObject) -> Sequence[JsonObject]:
    found = as_list(as_object(workload.get("status")).get("admissionChecks"))
    return [as_object(check) for check in found]


def _name(document: JsonObject) -> str:
    return str(as_object(document.get("metadata")).get("name", ""))


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: object, otherwise: datetime) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return otherwise
