"""Jobs without a description -> run once as a shadow pod without a GPU; the result decides.

Only in namespaces that have the label ``memgate.dev/rehearsals: enabled``, and where a policy says
``rehearse`` for what is undescribed. One at a time in a namespace. What is held for it is let go
when the result is there, or when its time is over: nothing is ever held without a timer, and a
rehearsal that fails refuses nothing. ``memgate.dev/rehearsal: skip`` opts an object out.

Shadows are deleted once their result is known, or their time is over; what fences them in, when a
namespace no longer takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from memgate.client.clients import Client
from memgate_service.admission.core.rehearsal import RehearsalResult, read_result
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.holding import SKIP_NAME
from memgate_service.admission.kubernetes.images import find_images, find_run_image, has_digest
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object
from memgate_service.admission.kubernetes.objects import Pod
from memgate_service.admission.kubernetes.places import asks_for_gpu
from memgate_service.admission.kubernetes.policy_resources import PolicyResources
from memgate_service.admission.kubernetes.rounds import Done, Rounds
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.admission.kubernetes.shadow_pod import (
    CONTAINER,
    LABELS,
    NAME,
    NotRehearsedError,
    Shadow,
    find_key,
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

_SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())

#: results that are remembered: of the same program on the same GPU
_MAX_RESULTS = 1000

#: and for how long if the image is known by its tag alone, or if nothing was found out
_TAG_SECONDS = 3600.0

_TOO_LATE = "there was no result in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    result: RehearsalResult
    until: datetime | None


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
        self._results: dict[tuple[str, str], _Kept] = {}
        self._shadows: dict[tuple[str, str], JsonObject] = {}
        self._namespaces: set[str] = set()
        self._images: dict[str, dict[str, str]] = {}

    def start_round(self) -> None:
        """Look which namespaces take part, and which shadows there are; remove leftovers."""
        if not self._settings.rehearsal_image:
            return
        self._images = {}
        found = self._cluster.list(Resource("v1", "namespaces"), OPT_IN)
        self._namespaces = {_name(one) for one in found}
        shadows = self._cluster.list(_PODS, _SELECTOR)
        self._shadows = {(_namespace(one), _name(one)): one for one in shadows}
        for shadow in list(self._shadows.values()):
            self._remove_old(shadow)
        self._remove_fences()

    def _remove_old(self, shadow: JsonObject) -> None:
        """Remove a shadow whose time is over; one that never ran is not tried again and again."""
        age = (self._now() - self._created_at(shadow)).total_seconds()
        result = find_result(shadow)
        # one that has ended may still be asked for its result
        patience = 1 if result is None else 3
        if age > patience * self._settings.rehearsal_seconds:
            self._keep(shadow, result or RehearsalResult(why=_TOO_LATE))
            self._remove(shadow)

    def _remove_fences(self) -> None:
        """Remove what fenced shadows in, where there are none and will be none."""
        needed = self._namespaces | {namespace for namespace, _ in self._shadows}
        for resource in _FENCE.values():
            try:
                for one in self._cluster.list(resource, _SELECTOR):
                    if _namespace(one) not in needed and _name(one) == NAME:
                        self._cluster.delete(resource, NAME, _namespace(one))
            except ClusterError as error:
                write_line("rehearsal", {"error": error.message})

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
            raise NotRehearsedError(_TOO_LATE)
        wanting = [pod for pod in pods if asks_for_gpu(pod) and pod.is_template]
        if len(wanting) != 1:
            raise NotRehearsedError(f"{len(wanting)} kinds of its pods ask for a GPU, not one")
        images = self._find_images(namespace)
        shadow = make_shadow(document, wanting[0], self._settings, self._claims(namespace), images)
        known = self._find_kept(shadow)
        if known is not None:
            return Rehearsed(result=known)
        existing = self._shadows.get((namespace, shadow.pod["metadata"]["name"]))
        if existing is None:
            self._start(namespace, shadow)
            return Rehearsed()
        result = find_result(existing)
        if result is not None:
            result = name_image(result, existing)
            self._keep(existing, result)
            self._remove(existing)
        return Rehearsed(result=result)

    def _find_images(self, namespace: str) -> dict[str, str]:
        """Return the images that have run in a namespace, by their digests."""
        if namespace not in self._images:
            pods = self._cluster.list(_PODS, namespace=namespace)
            self._images[namespace] = find_images(pods)
        return self._images[namespace]

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

    def _find_kept(self, shadow: Shadow) -> RehearsalResult | None:
        kept = self._results.get((shadow.key, shadow.image))
        if kept is None or (kept.until is not None and kept.until < self._now()):
            return None
        return kept.result

    def _keep(self, shadow: JsonObject, result: RehearsalResult) -> None:
        """Remember a result, by the image that was run and by what is written in its place."""
        while len(self._results) >= _MAX_RESULTS:
            self._results.pop(next(iter(self._results)))
        soon = self._now() + timedelta(seconds=_TAG_SECONDS)
        for image in filter(None, (_image(shadow), find_run_image(shadow, CONTAINER))):
            is_lasting = has_digest(image) and result.is_known
            until = None if is_lasting else soon
            self._results[find_key(_name(shadow)), image] = _Kept(result=result, until=until)

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


def name_image(result: RehearsalResult, shadow: JsonObject) -> RehearsalResult:
    """Say which image was run, where only its tag was known: by then a tag may mean another."""
    image = _image(shadow)
    if has_digest(image) or not result.is_known:
        return result
    ran = find_run_image(shadow, CONTAINER).rpartition("@")[2]
    said = f"{image} was {ran} then" if ran else f"{image} by its tag, whatever that meant then"
    return msgspec.structs.replace(result, why=f"{result.why} (the image: {said})")


def _image(shadow: JsonObject) -> str:
    """Return the image of a shadow as it was asked for."""
    for one in map(as_object, as_list(as_object(shadow.get("spec")).get("containers"))):
        if one.get("name") == CONTAINER:
            return str(one.get("image"))
    return ""


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
