"""Jobs without a description -> run once as a shadow pod without a GPU; the result decides.

Only in namespaces that have the label ``memgate.dev/rehearsals: enabled``, and where a policy says
``rehearse`` for what is undescribed. One at a time in a namespace. What is held for it is let go
when the result is there, or when its time is over: nothing is ever held without a timer, and a
rehearsal that fails refuses nothing. ``memgate.dev/rehearsal: skip`` opts an object out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from memgate.client.clients import Client
from memgate_service.admission.core.rehearsal import RehearsalResult, read_result
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.holding import SKIP_NAME
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.objects import Pod
from memgate_service.admission.kubernetes.places import asks_for_gpu
from memgate_service.admission.kubernetes.policy_resources import PolicyResources
from memgate_service.admission.kubernetes.rounds import Done, Rounds
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.admission.kubernetes.shadow_pod import (
    LABELS,
    NotRehearsedError,
    Shadow,
    make_fence,
    make_shadow,
)
from memgate_worker.logs import write_line

OPT_IN = "memgate.dev/rehearsals=enabled"

_PODS = Resource("v1", "pods")
_CLAIMS = Resource("v1", "persistentvolumeclaims")
_FENCE = {
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "ResourceQuota": Resource("v1", "resourcequotas"),
}

#: results that are remembered: of the same program on the same GPU
_MAX_RESULTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What is known about an object now."""

    result: RehearsalResult | None = None
    """None: it is being rehearsed, or waits for its turn."""


class Rehearsals:
    """The shadow pods of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        settings: AdmissionSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._now = now
        self._results: dict[str, RehearsalResult] = {}
        self._shadows: dict[tuple[str, str], JsonObject] = {}
        self._namespaces: set[str] = set()

    def start_round(self) -> None:
        """Look which namespaces take part, and which shadows there are; remove those of others."""
        if not self._settings.rehearsal_image:
            return
        found = self._cluster.list(Resource("v1", "namespaces"), OPT_IN)
        self._namespaces = {_name(one) for one in found}
        selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
        self._shadows = {(_namespace(one), _name(one)): one for one in self._list(selector)}
        for shadow in list(self._shadows.values()):
            age = (self._now() - self._created_at(shadow)).total_seconds()
            # one that has ended may still be asked for its result
            patience = 1 if find_result(shadow) is None else 3
            if age > patience * self._settings.rehearsal_seconds:
                self._remove(shadow)

    def _list(self, selector: str) -> list[JsonObject]:
        return self._cluster.list(_PODS, selector)

    def look_at(
        self, document: JsonObject, pods: tuple[Pod, ...], since: datetime | None = None
    ) -> Rehearsed:
        """Say what is known about an object; start its rehearsal if it is its turn.

        Args:
            document: the object, with ``apiVersion`` and ``kind``.
            pods: of it.
            since: when its time began; None: when it was created.
        """
        try:
            return self._look_at(document, pods, since or self._created_at(document))
        except NotRehearsedError as error:
            return Rehearsed(result=RehearsalResult(why=error.message))
        except ClusterError as error:  # what cannot be fenced in, or created, is not run
            return Rehearsed(result=RehearsalResult(why=error.message))

    def _look_at(self, document: JsonObject, pods: tuple[Pod, ...], since: datetime) -> Rehearsed:
        namespace = _namespace(document)
        self._check_wanted(document, namespace)
        if (self._now() - since).total_seconds() > self._settings.rehearsal_seconds:
            raise NotRehearsedError("there was no result in time")
        wanting = [pod for pod in pods if asks_for_gpu(pod) and pod.is_template]
        if len(wanting) != 1:
            raise NotRehearsedError(f"{len(wanting)} kinds of its pods ask for a GPU, not one")
        shadow = make_shadow(document, wanting[0], self._settings, self._claims(namespace))
        known = self._results.get(shadow.key)
        if known is not None:
            return Rehearsed(result=known)
        existing = self._shadows.get((namespace, shadow.pod["metadata"]["name"]))
        if existing is None:
            self._start(namespace, shadow)
            return Rehearsed()
        result = find_result(existing)
        if result is not None:
            self._keep(shadow.key, result)
            self._remove(existing)
        return Rehearsed(result=result)

    def _check_wanted(self, document: JsonObject, namespace: str) -> None:
        if not self._settings.rehearsal_image:
            raise NotRehearsedError("rehearsals are not set up")
        if namespace not in self._namespaces:
            raise NotRehearsedError(f"the namespace does not have the label {OPT_IN}")
        annotations = as_object(as_object(document.get("metadata")).get("annotations"))
        if annotations.get(SKIP_NAME) == "skip":
            raise NotRehearsedError("its owner does not want it")

    def _claims(self, namespace: str) -> dict[str, list[str]]:
        found = self._cluster.list(_CLAIMS, namespace=namespace)
        return {_name(one): as_list(as_object(one.get("spec")).get("accessModes")) for one in found}

    def _start(self, namespace: str, shadow: Shadow) -> None:
        """Create the shadow, after what keeps it from the network; others wait for their turn."""
        if any(place == namespace for place, _ in self._shadows):
            return
        for one in make_fence(namespace):
            self._cluster.apply(_FENCE[one["kind"]], one)
        try:
            made = self._cluster.create(_PODS, shadow.pod)
        except ClusterError as error:
            if "quota" in error.message:  # it is full, or so new that nobody has counted yet
                return
            raise
        self._shadows[namespace, _name(made)] = made
        write_line("rehearsal", {"namespace": namespace, "name": _name(made), "gpu": shadow.gpu})

    def _keep(self, key: str, result: RehearsalResult) -> None:
        if len(self._results) >= _MAX_RESULTS:
            self._results.pop(next(iter(self._results)))
        self._results[key] = result

    def _remove(self, shadow: JsonObject) -> None:
        namespace, name = _namespace(shadow), _name(shadow)
        try:
            self._cluster.delete(_PODS, name, namespace)
        except ClusterError as error:
            write_line("rehearsal", {"namespace": namespace, "name": name, "error": error.message})
        self._shadows.pop((namespace, name), None)

    def _created_at(self, document: JsonObject) -> datetime:
        text = as_object(document.get("metadata")).get("creationTimestamp")
        try:
            return datetime.fromisoformat(str(text))
        except ValueError:
            return self._now()


def find_result(shadow: JsonObject) -> RehearsalResult | None:
    """Return what a shadow has shown; None while it runs."""
    status = as_object(shadow.get("status"))
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    for one in map(as_object, as_list(status.get("containerStatuses"))):
        ended = as_object(as_object(one.get("state")).get("terminated"))
        if ended.get("message"):
            return read_result(str(ended["message"]))
    why: Any = status.get("message") or status.get("reason")
    return RehearsalResult(why=f"its pod failed: {why}" if why else "")


def _name(document: JsonObject) -> str:
    return str(as_object(document.get("metadata")).get("name", ""))


def _namespace(document: JsonObject) -> str:
    return str(as_object(document.get("metadata")).get("namespace", ""))


class RehearsingRounds(Rounds):
    """Rounds in which objects may have to be rehearsed."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        settings: AdmissionSettings,
        policies: PolicyResources | None = None,
    ) -> None:
        super().__init__(cluster, client, settings, policies)
        self._rehearsals = Rehearsals(cluster, settings)

    def go_round(self) -> Done:
        """Check everything that waits, and look again at what is being rehearsed."""
        self._rehearsals.start_round()
        return super().go_round()
