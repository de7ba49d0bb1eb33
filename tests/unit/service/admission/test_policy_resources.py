"""Policies as objects of the cluster: read without a restart, the last good version kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from memgate_service.admission.core.rules import PolicyError, Subject
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.policy_resources import (
    CLUSTER_KIND,
    NAMESPACED_KIND,
    PolicyResources,
    open_policies,
    read_policy,
)
from memgate_service.admission.kubernetes.policy_review import make_status, review_policy
from memgate_service.admission.kubernetes.review import Kind, Review
from memgate_service.admission.kubernetes.settings import AdmissionSettings

_NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def _policy(spec: Any, name: str = "main", namespace: str = "", generation: int = 1) -> Any:
    metadata = {"name": name, "generation": generation}
    return {"metadata": metadata | ({"namespace": namespace} if namespace else {}), "spec": spec}


class FakeCluster:
    """Lists policies, or fails with a status."""

    def __init__(self) -> None:
        self.policies: dict[str, list[Any]] = {}
        self.status = 0

    def list(self, resource: Resource) -> list[Any]:
        """Return them by the plural of their kind; 404 if there is no such kind."""
        if self.status:
            raise ClusterError("refused", self.status)
        if resource.plural not in self.policies:
            raise ClusterError("no such kind", 404)
        return self.policies[resource.plural]


def _open(cluster: FakeCluster, log: list[str], *, is_on: bool = True) -> PolicyResources:
    settings = AdmissionSettings(admission_policy_resources=is_on)
    return open_policies(settings, lambda: cluster, log.append)  # type: ignore[arg-type, return-value]


def test_a_change_is_in_force_after_the_next_look() -> None:
    """Without a restart; a deleted policy is gone."""
    cluster, log = FakeCluster(), list[str]()
    policies = _open(cluster, log)
    assert policies.read().choose(Subject()).rule == "policies cannot be read"
    policies.refresh()  # the kinds are not installed
    assert policies.read().choose(Subject()).mode == "enforce"

    cluster.policies = {"clustermemgatepolicies": [_policy({"mode": "warn"})]}
    policies.refresh(is_due=False)
    assert policies.read().choose(Subject()).mode == "enforce"  # not yet due
    policies.refresh()
    assert policies.read().choose(Subject()).mode == "warn"

    cluster.policies = {"clustermemgatepolicies": []}
    policies.refresh()
    assert policies.read().choose(Subject()).mode == "enforce"
    assert log == []


def test_a_broken_policy_leaves_its_last_good_version_in_force() -> None:
    """It is told once, in the log and in the status; and the mended one is in force."""
    cluster, log = FakeCluster(), list[str]()
    policies = _open(cluster, log)
    cluster.policies = {"clustermemgatepolicies": [_policy({"mode": "warn"})]}
    policies.refresh()
    cluster.policies = {"clustermemgatepolicies": [_policy({"mood": "warn"}, generation=2)]}
    policies.refresh()
    policies.refresh()

    assert policies.read().choose(Subject()).mode == "warn"
    (said,) = log
    assert said.startswith("ClusterMemgatePolicy/main is wrong, its last good version stays")
    assert "mood" in said
    (state,) = policies.states()
    status = make_status(state, policies.read(), _NOW)
    assert status is not None
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Wrong")
    assert "mood" in condition["message"]
    assert status["observedGeneration"] == 2

    cluster.policies = {"clustermemgatepolicies": [_policy({"mode": "audit"}, generation=3)]}
    policies.refresh()
    assert policies.read().choose(Subject()).mode == "audit"


def test_a_policy_that_was_never_right_enforces_nothing() -> None:
    """It is not known what is wanted; a namespace's own leaves the rest as it is."""
    cluster, log = FakeCluster(), list[str]()
    policies = _open(cluster, log)
    wrong = {"on": {"undescribed": "hold"}}
    cluster.policies = {"memgatepolicies": [_policy(wrong, namespace="team")]}
    policies.refresh()
    assert policies.read().choose(Subject(namespace="team")).mode == "enforce"

    cluster.policies["clustermemgatepolicies"] = [_policy(wrong)]
    policies.refresh()
    chosen = policies.read().choose(Subject(namespace="elsewhere"))
    assert (chosen.mode, chosen.rule) == ("audit", "ClusterMemgatePolicy/main is wrong")
    assert len(log) == 2


def test_an_api_server_that_is_away_changes_nothing() -> None:
    """What was known stays in force, and the log says so once."""
    cluster, log = FakeCluster(), list[str]()
    policies = _open(cluster, log)
    cluster.policies = {"clustermemgatepolicies": [_policy({"mode": "warn"})]}
    policies.refresh()
    cluster.status = 403
    policies.refresh()
    policies.refresh()

    assert policies.read().choose(Subject()).mode == "warn"
    assert log == ["policies cannot be read, those known stay in force: refused"]


def test_without_such_objects_only_the_settings_count() -> None:
    """For those who want no such kinds: nothing is listed."""
    cluster, log = FakeCluster(), list[str]()
    cluster.status = 500
    policies = _open(cluster, log, is_on=False)
    policies.refresh()

    assert policies.read().choose(Subject()).mode == "enforce"
    assert log == []


@pytest.mark.parametrize(
    ("kind", "spec", "want"),
    [
        (CLUSTER_KIND, {"namespacedPolicies": "all"}, "it must be tighten or any"),
        (NAMESPACED_KIND, {"namespacedPolicies": "any"}, "for a ClusterMemgatePolicy only"),
        (NAMESPACED_KIND, {"rules": [{"namespace": ["x"]}]}, "rules[1] has 'namespace'"),
        (NAMESPACED_KIND, {"rules": [{"user": ["x"], "qos": ["x"]}]}, "rules[1] has 'qos'"),
        (NAMESPACED_KIND, {"exempt": [{"account": ["x"]}]}, "exempt[1] has 'account'"),
        (CLUSTER_KIND, {"rules": [{"usr": ["x"]}]}, "usr"),
    ],
)
def test_a_wrong_policy_is_refused_by_name(kind: str, spec: Any, want: str) -> None:
    """The field, and what it may be; by the webhook as well."""
    document = _policy(spec, namespace="team")
    with pytest.raises(PolicyError) as wrong:
        read_policy(kind, document)
    assert want in wrong.value.message

    short, _, group = kind.partition(".")
    review = Review(
        uid="1", kind=Kind(kind=short, group=group), operation="CREATE", object=document
    )
    answer = review_policy(review, _open(FakeCluster(), []).read())
    assert not answer.allowed
    assert want in answer.message


def test_what_has_no_effect_is_told_when_it_is_written_and_in_the_status() -> None:
    """A namespace's policy that would loosen is taken, and its author is told."""
    cluster = FakeCluster()
    document = _policy({"mode": "audit"}, namespace="team")
    cluster.policies = {"memgatepolicies": [document]}
    policies = _open(cluster, [])
    policies.refresh()
    kind = Kind(kind="MemgatePolicy", group="memgate.dev")
    review = Review(uid="1", kind=kind, operation="CREATE", object=document)

    answer = review_policy(review, policies.read())
    (state,) = policies.states()
    status = make_status(state, policies.read(), _NOW)

    assert answer.allowed
    assert "mode audit is milder than enforce" in answer.warnings[0]
    assert status is not None
    assert status["conditions"][0]["reason"] == "AppliedInPart"
    document["status"] = status
    assert make_status(state, policies.read(), _NOW) is None


def test_other_kinds_are_not_its_business() -> None:
    """A webhook that is asked about something else lets it in."""
    review = Review(uid="1", kind=Kind(kind="Pod"), operation="CREATE", object={})
    assert review_policy(review, _open(FakeCluster(), []).read()).allowed
