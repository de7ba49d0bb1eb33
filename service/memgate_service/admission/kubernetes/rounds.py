"""What the controllers share: they check waiting objects, round after round.

They keep no state that matters: restarted, or run twice, they do the same.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from memgate.audit import AuditEntry
from memgate.client.clients import Client
from memgate.client.errors import ClientError
from memgate.owner import Owner
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.policy import Policy
from memgate_service.admission.core.rules import PolicyChoice, Subject
from memgate_service.admission.core.sequence import Rules, Step, run
from memgate_service.admission.kubernetes.cluster import (
    Cluster,
    ClusterError,
    ObjectEvent,
    Resource,
)
from memgate_service.admission.kubernetes.config_maps import ConfigMaps
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.judging import PodAsker, judge_pods
from memgate_service.admission.kubernetes.modes import make_policy
from memgate_service.admission.kubernetes.objects import SHAPES, Pod
from memgate_service.admission.kubernetes.policy_resources import PolicyResources, open_policies
from memgate_service.admission.kubernetes.settings import AdmissionSettings, Shape
from memgate_worker.logs import write_line

#: how often to discover which kinds the cluster has
_DISCOVER_SECONDS = 60.0


class Done(NamedTuple):
    """What a round did."""

    num_released: int = 0
    num_refused: int = 0
    num_waiting: int = 0

    def plus(self, other: Done) -> Done:
        """Return what both did."""
        return Done(*(a + b for a, b in zip(self, other, strict=True)))


class Listed(NamedTuple):
    """An object of a kind that may train, as the cluster has it."""

    kind: str
    shape: Shape
    resource: Resource
    document: JsonObject

    @property
    def is_held_itself(self) -> bool:
        """Say whether the object is what is held, and not its pods."""
        return self.shape.suspend is not None or self.shape.templates == ("",)


class Rounds(ABC):
    """Checks objects that wait for an answer, again and again."""

    #: how often there is something to do; 0: in every round
    every_seconds = 0.0

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        settings: AdmissionSettings,
        policies: PolicyResources | None = None,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._settings = settings
        self._asker = PodAsker(client, ConfigMaps(lambda: cluster))
        self._policies = policies or open_policies(
            settings, lambda: cluster, lambda problem: write_line("policy", {"error": problem})
        )
        self._discovered_at = float("-inf")

    def go_round(self) -> Done:
        """Check everything that waits.

        Raises:
            ClusterError: if the API server does not list it.
        """
        if time.monotonic() - self._discovered_at > _DISCOVER_SECONDS:
            self._cluster.forget_kinds()
            self._discovered_at = time.monotonic()
        self._policies.refresh(is_due=False)
        self._asker.start_round()
        return self._go_round()

    @abstractmethod
    def _go_round(self) -> Done:
        """Check everything that waits."""

    def _list_objects(self, selector: str = "") -> Iterator[Listed]:
        """Yield what may train; a kind that cannot be listed is logged, and left for later."""
        for kind, shape in (SHAPES | self._settings.admission_paths).items():
            try:
                resource = self._cluster.find(kind)
                found = [] if resource is None else self._cluster.list(resource, selector)
            except ClusterError as error:
                write_line("cluster", {"kind": kind, "error": error.message})
                continue
            for document in found:
                assert resource is not None
                named = {"apiVersion": resource.api_version, "kind": kind.partition(".")[0]}
                yield Listed(kind, shape, resource, {**document, **named})

    def _try_event(self, event: ObjectEvent) -> bool:
        """Record an event, and say whether it is new; if that fails, the log has it."""
        try:
            return self._cluster.record_event(event)
        except ClusterError as error:
            write_line("event", {**event._asdict(), "error": error.message})
            return False

    def _record_once(
        self,
        about: str,
        kind: str,
        document: JsonObject,
        chosen: PolicyChoice,
        said: Mapping[str, Any],
    ) -> None:
        """Send one record about an object to the audit; the same one sent again is stored once."""
        metadata = as_object(document.get("metadata"))
        record = {
            "id": sha256(f"{about} {metadata.get('uid')}".encode()).hexdigest()[:32],
            "at": time.time(),
            "gate": "kubernetes",
            "namespace": str(metadata.get("namespace", "")),
            "kind": kind,
            "name": str(metadata.get("name", "")),
            "job": str(metadata.get("uid", "")),
            "mode": str(chosen.mode),
            "rule": chosen.rule,
            **said,
        }
        try:
            self._client.record_decisions([AuditEntry.model_validate(record)])
        except ClientError as error:
            write_line(about, {"error": f"the audit takes no records: {error.message}"})

    def _choose_rule(self, subject: Subject) -> PolicyChoice:
        """Return what the operator's policy says about an object now."""
        return self._policies.read().choose(subject)

    def _policy(self, chosen: PolicyChoice) -> Policy:
        """Return the policy of the webhooks; a controller waits for a missing answer."""
        return replace(make_policy(self._settings, chosen), patience_seconds=float("inf"))

    def _judge(
        self,
        namespace: str,
        pods: tuple[Pod, ...],
        policy: Policy,
        waited_seconds: float = 0.0,
    ) -> Judgement | None:
        """Judge an object by its pods; None if none of them has a job of ours.

        Raises:
            InputError: if what a person wrote about a job is wrong.
        """
        rules = Rules(policy=policy, cluster=self._settings.gpus, waited_seconds=waited_seconds)
        return run(judge_pods(namespace, pods, rules), self._asking_for(namespace))

    def _asking_for(self, namespace: str) -> Callable[[Step[Any]], Any]:
        """Return what does the steps of a judgement, for a namespace."""
        owner = Owner(cluster=self._settings.cluster_name, namespace=namespace)
        return partial(self._asker.do, owner=owner)


def run_rounds(
    all_rounds: Sequence[Rounds],
    interval_seconds: float,
    goes_on: Callable[[float], bool],
    is_leader: Callable[[], bool] = lambda: True,
) -> None:
    """Do rounds until told to stop; of several programs only the leader does.

    Args:
        all_rounds: what to do, in this order.
        interval_seconds: between rounds.
        goes_on: waits, and says whether to go on.
        is_leader: whether this program is the one to do it now.
    """
    begun_at = {one: float("-inf") for one in all_rounds}
    while True:
        for one in all_rounds:
            if is_leader() and time.monotonic() - begun_at[one] >= one.every_seconds:
                begun_at[one] = time.monotonic()
                _go_round(one)
        if not goes_on(interval_seconds):
            return


def _go_round(one: Rounds) -> None:
    try:
        done = one.go_round()
        if any(done):
            write_line("held", done._asdict())
    except ClusterError as error:
        write_line("cluster", {"error": error.message})
