"""Several controllers, one of which works: the others take over when it is gone.

The leader holds a Lease of Kubernetes and renews it; whoever sees it unchanged for as long as it
lasts takes it. Clocks of different machines are never compared: what counts is how long a program
has itself seen the same record. As others do it (client-go), with the same times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_worker.logs import write_line

LEASES = Resource("coordination.k8s.io/v1", "leases")

#: for how long others wait after the last renewal, and when a leader that cannot renew stops
_LEASE_SECONDS = 15
_DEADLINE_SECONDS = 10.0
_RENEW_SECONDS = 2.0


class Leader:
    """One candidate. ``hold`` takes or renews the Lease, ``is_leader`` says what came of it."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._seen: tuple[object, float] = (None, float("-inf"))
        self._renewed_at = float("-inf")

    def is_leader(self) -> bool:
        """Say whether this program may work: it has renewed the Lease a moment ago."""
        return self._clock() - self._renewed_at < _DEADLINE_SECONDS

    def hold(self) -> None:
        """Take the Lease if it is free, renew it if it is ours."""
        was_leader = self.is_leader()
        now = self._clock()
        try:
            if self._try(now):
                self._renewed_at = now
        except ClusterError as error:
            if error.status != 409:  # somebody was faster
                write_line("leader", {"error": error.message})
        if self.is_leader() is not was_leader:
            write_line("leader", {"identity": self._identity, "leads": self.is_leader()})

    def _try(self, now: float) -> bool:
        try:
            lease = self._cluster.read(LEASES, self._name, self._namespace)
        except ClusterError as error:
            if error.status != 404:
                raise
            self._cluster.create(LEASES, self._write({}, {}))
            return True
        spec = as_object(lease.get("spec"))
        holder = spec.get("holderIdentity")
        if holder and holder != self._identity and not self._is_over(spec, now):
            return False
        self._cluster.replace(LEASES, self._write(lease, spec))
        return True

    def _is_over(self, spec: JsonObject, now: float) -> bool:
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if self._seen[0] != record:
            self._seen = (record, now)
        lasts = spec.get("leaseDurationSeconds")
        return now - self._seen[1] >= (lasts if isinstance(lasts, int) else _LEASE_SECONDS)

    def _write(self, lease: JsonObject, spec: JsonObject, identity: str | None = None) -> Any:
        identity = self._identity if identity is None else identity
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = spec.get("holderIdentity") == self._identity
        changes = spec.get("leaseTransitions")
        number = changes if isinstance(changes, int) else 0
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": lease.get("metadata") or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": identity,
                "leaseDurationSeconds": _LEASE_SECONDS,
                "acquireTime": spec.get("acquireTime", now) if is_ours else now,
                "renewTime": now,
                "leaseTransitions": number if is_ours or not spec else number + 1,
            },
        }

    def let_go(self) -> None:
        """Free the Lease, so that nobody waits for it to end."""
        if not self.is_leader():
            return
        self._renewed_at = float("-inf")
        try:
            lease = self._cluster.read(LEASES, self._name, self._namespace)
            spec = as_object(lease.get("spec"))
            if spec.get("holderIdentity") == self._identity:
                self._cluster.replace(LEASES, self._write(lease, spec, identity=""))
        except ClusterError as error:
            write_line("leader", {"error": error.message})

    def keep_holding(self, stopped: threading.Event) -> None:
        """Take or renew the Lease until told to stop; then free it."""
        while not stopped.is_set():
            self.hold()
            stopped.wait(_RENEW_SECONDS)
        self.let_go()
