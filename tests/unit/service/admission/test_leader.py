"""Several controllers, of which one works at a time."""

from __future__ import annotations

import copy
import threading
from typing import Any

from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.leader import Leader


class FakeCluster:
    """Keeps one Lease, with the API server's rule on what was changed in between."""

    def __init__(self) -> None:
        self.lease: Any = None
        self.version = 0
        self.is_away = False

    def _check(self) -> None:
        if self.is_away:
            raise ClusterError("away")

    def read(self, resource: Resource, name: str, namespace: str) -> Any:
        """Return it."""
        self._check()
        if self.lease is None:
            raise ClusterError("none", 404)
        return copy.deepcopy(self.lease)

    def create(self, resource: Resource, document: Any) -> None:
        """Make it, once."""
        self._check()
        if self.lease is not None:
            raise ClusterError("there is one", 409)
        self._keep(document)

    def replace(self, resource: Resource, document: Any) -> None:
        """Write it, unless somebody else did."""
        self._check()
        if document["metadata"].get("resourceVersion") != self.version:
            raise ClusterError("changed", 409)
        self._keep(document)

    def _keep(self, document: Any) -> None:
        self.version += 1
        self.lease = copy.deepcopy(document)
        self.lease["metadata"]["resourceVersion"] = self.version


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def _candidate(cluster: FakeCluster, identity: str, clock: Clock) -> Leader:
    return Leader(cluster, "memgate", "controller", identity, clock)  # type: ignore[arg-type]


def test_the_first_leads_and_the_second_waits() -> None:
    """As long as the first renews, however long that is."""
    cluster, clock = FakeCluster(), Clock()
    one, two = (_candidate(cluster, name, clock) for name in ("one", "two"))
    for _ in range(20):
        one.hold()
        two.hold()
        clock.now += 2
    assert one.is_leader()
    assert not two.is_leader()
    assert cluster.lease["spec"]["leaseTransitions"] == 0


def test_the_second_takes_over_when_the_first_is_gone() -> None:
    """Not before the Lease has run out, and the first stops before that."""
    cluster, clock = FakeCluster(), Clock()
    one, two = (_candidate(cluster, name, clock) for name in ("one", "two"))
    one.hold()
    two.hold()
    clock.now += 11
    two.hold()
    assert not one.is_leader()  # it could not renew
    assert not two.is_leader()
    clock.now += 5
    two.hold()
    assert two.is_leader()
    assert cluster.lease["spec"]["holderIdentity"] == "two"
    assert cluster.lease["spec"]["leaseTransitions"] == 1
    one.hold()
    assert not one.is_leader()


def test_who_is_slower_does_not_lead() -> None:
    """Two that see the same free Lease: the API server takes one."""
    cluster, clock = FakeCluster(), Clock()
    _candidate(cluster, "gone", clock).hold()
    clock.now += 0.1
    one, two = (_candidate(cluster, name, clock) for name in ("one", "two"))
    one.hold()
    two.hold()
    clock.now += 20
    stale = cluster.read(Resource("", ""), "", "")
    one.hold()
    cluster.read = lambda *_: stale  # type: ignore[method-assign]
    two.hold()
    assert one.is_leader()
    assert not two.is_leader()


def test_a_leader_that_stops_lets_go_at_once() -> None:
    """Nobody waits for the Lease to run out; and a leader without an API server stops."""
    cluster, clock = FakeCluster(), Clock()
    one, two = (_candidate(cluster, name, clock) for name in ("one", "two"))
    stopped = threading.Event()
    stopped.set()
    one.hold()
    one.keep_holding(stopped)
    two.hold()
    assert not one.is_leader()
    assert two.is_leader()
    cluster.is_away = True
    clock.now += 11
    two.hold()
    assert not two.is_leader()
    two.let_go()
