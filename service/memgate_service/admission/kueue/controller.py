"""Kueue Workloads that wait for one of our admission checks -> Ready, Retry or Rejected.

An AdmissionCheck whose ``controllerName`` is ours is answered by ``memgate controller --kueue``.
Kueue asks once it has reserved quota: by then it has chosen flavors, and their node labels say on
which GPU a job will run. A check waits for its answer, with the quota, for as long as a webhook
would (``MEMGATE_ADMISSION_WAIT_SECONDS``); then ``MEMGATE_ADMISSION_ON_TIMEOUT`` decides.

Not here: what a job needs (``core``), and starting or stopping it, which Kueue does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memgate.decision import Decision
from memgate.errors import InputError
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.rules import Mode, PolicyChoice, Subject
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.objects import JOB, SHAPES, Pod, find_pods, select_node
from memgate_service.admission.kubernetes.patches import Patch, put
from memgate_service.admission.kubernetes.rehearsals import RehearsingRounds
from memgate_service.admission.kubernetes.rounds import Done
from memgate_service.admission.kubernetes.settings import Group, Shape
from memgate_worker.logs import write_line

#: the controller name of AdmissionChecks that are ours to answer
CONTROLLER = "memgate.dev/admission-check"

_GROUP = "kueue.x-k8s.io"
_TEMPLATES = ("/spec/podSets/*/template",)

#: when Kueue should retry what had no answer in time; others get the quota until then
_REQUEUE_SECONDS = 60

_DONE = {"Ready": Done(num_released=1), "Pending": Done(num_waiting=1)}

#: flavors by name -> the labels of their nodes
Flavors = Mapping[str, Mapping[str, str]]


class Reply(NamedTuple):
    """A check's new state, and why."""

    state: str
    message: str


class KueueController(RehearsingRounds):
    """Answers Kueue's admission checks."""

    def _go_round(self) -> Done:
        done = Done()
        checks = self._activate()
        workloads = self._cluster.find(f"Workload.{_GROUP}")
        if not checks or workloads is None:
            return done
        waiting = [
            ({**workload, "apiVersion": workloads.api_version, "kind": "Workload"}, index)
            for workload in self._cluster.list(workloads)
            for index in find_waiting(workload, checks)
        ]
        flavors = self._flavors() if waiting else {}
        for workload, index in waiting:
            done = done.plus(self._look_at(workloads, workload, index, flavors))
        return done

    def _activate(self) -> set[str]:
        """Return the names of our checks; Kueue uses only those whose controller is active."""
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
        except ClusterError as error:  # changed or deleted in the meantime
            write_line("judged", {**line, "error": error.message})
            return Done(num_waiting=1)
        write_line("judged", {**line, "action": reply.state, "message": reply.message})
        return done

    def _reply(self, workload: JsonObject, index: int, flavors: Flavors, now: datetime) -> Reply:
        namespace = str(as_object(workload.get("metadata")).get("namespace", ""))
        since = _time(_checks(workload)[index].get("lastTransitionTime"), now)
        waited_seconds = (now - since).total_seconds()
        chosen = self._choose_rule(_subject(workload, namespace))
        policy = self._policy(chosen)
        try:
            pods = place_pods(workload, flavors)
            judgement = self._judge(namespace, pods, policy, waited_seconds)
            if judgement is None and _is_to_rehearse(chosen):
                reply = self._rehearse(workload, pods, since)
            else:
                reply = choose_state(judgement)
        except InputError as error:
            reply = Reply("Rejected", f"memgate: {error.message}")
        if chosen.mode is Mode.ENFORCE or reply.state == "Ready":
            return reply
        # nothing is kept waiting, or out, where nothing is enforced
        said = f"memgate only warns here: {reply.message.removeprefix('memgate: ')}"
        return Reply("Ready", said if chosen.mode is Mode.WARN else "")

    def _rehearse(self, workload: JsonObject, pods: tuple[Pod, ...], since: datetime) -> Reply:
        """Return a check's state by a rehearsal; one that fails keeps nothing out."""
        result = self._rehearsals.look_at(workload, pods, since=since).result
        if result is None:
            return Reply("Pending", "memgate: it is run once without a GPU first")
        state = "Rejected" if result.is_refused else "Ready"
        return Reply(state, f"memgate: {result.message}")

    def _policy(self, chosen: PolicyChoice) -> Policy:
        """Return the policy of the webhooks; a check waits for as long as they would."""
        patience = self._settings.admission_wait_seconds
        return replace(super()._policy(chosen), patience_seconds=patience)


def _is_to_rehearse(chosen: PolicyChoice) -> bool:
    """Say whether a check waits for a rehearsal; where nothing is enforced, it runs beside the job.

    That is the background audit's, which finds the job by what it is.
    """
    is_wanted = chosen.on.get("undescribed") == "rehearse" and not chosen.is_exempt
    return is_wanted and chosen.mode is Mode.ENFORCE


def _subject(workload: JsonObject, namespace: str) -> Subject:
    """Return where a Workload is; who submitted it, Kueue does not say."""
    labels = as_object(as_object(workload.get("metadata")).get("labels"))
    label = {name: text for name, text in labels.items() if isinstance(text, str)}
    return Subject(namespace=namespace, kind=f"Workload.{_GROUP}", label=label)


def find_waiting(workload: JsonObject, names: set[str]) -> Iterator[int]:
    """Yield the indexes of a Workload's checks to answer now.

    Not before quota is reserved. A Workload that is being evicted is left alone: an answer at that
    moment would keep it out of the queue forever. A running one is not stopped by a check that was
    added later.
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
    for pod in find_pods(workload, Shape(templates=_TEMPLATES, pods=_group(workload))):
        index = int(pod.pointer.split("/")[3])
        labels: dict[str, str] = {}
        for flavor in chosen.get(as_object(sets[index]).get("name", "main"), ()):
            labels |= flavors.get(str(flavor), {})
        placed.append(_place(pod, labels))
    return tuple(placed)


def _group(workload: JsonObject) -> Group:
    """Say whether a Workload's pods are one job, by the kind of what it stands for."""
    owners = as_list(as_object(workload.get("metadata")).get("ownerReferences"))
    for owner in map(as_object, owners):
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        kind = ".".join(filter(None, (str(owner.get("kind", "")), group)))
        if kind in SHAPES:
            return SHAPES[kind].pods
    return "perhaps"  # of plain pods, which Kueue can group


def _place(pod: Pod, labels: Mapping[str, str]) -> Pod:
    """Put a pod on nodes with these labels, which choose one of the GPUs that it allows."""
    chosen = select_node(labels)
    return replace(pod, nodes=tuple(dict.fromkeys((*chosen, *term) for term in pod.nodes)))


_STATES = {
    Action.ADMIT: "Ready",
    Action.REJECT: "Rejected",
    Action.HOLD: "Pending",
    Action.WAIT: "Pending",
}


def choose_state(judgement: Judgement | None) -> Reply:
    """Return a check's new state."""
    if judgement is None:
        return Reply("Ready", f"memgate: not checked: no pod template has the annotation {JOB}")
    message = f"memgate: {judgement.message}"
    if judgement.is_advice_pending:  # it is refused once, with what would fit
        return Reply("Pending", message)
    if judgement.action is Action.REJECT and judgement.decision is Decision.UNKNOWN:
        return Reply("Retry", message)
    return Reply(_STATES[judgement.action], message)


def write_reply(workload: JsonObject, index: int, reply: Reply, now: datetime) -> Patch:
    """Return the patch that sets a check; empty if nothing changes. Fails if the object changed."""
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
    """Return the patch that tells Kueue that we answer a check; empty if it already knows."""
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
