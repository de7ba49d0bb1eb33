"""What exists already, judged in the background: the audit, events, PolicyReports."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from memgate.audit import AuditEntry
from memgate.client.errors import NotDoneError, RefusedError
from memgate.units import GIB
from memgate_service.admission.kubernetes.background import BackgroundAudit
from memgate_service.admission.kubernetes.cluster import ClusterError, ObjectEvent, Resource
from memgate_service.admission.kubernetes.events import tell_decision
from memgate_service.admission.kubernetes.reports import JudgedObject, make_report
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from tests.admission import T4, make_job, make_pod
from tests.unit.service.admission.test_controller import FakeMemgate

_KINDS = {
    "Pod": Resource("v1", "pods"),
    "Job.batch": Resource("batch/v1", "jobs"),
    "PolicyReport.wgpolicyk8s.io": Resource("wgpolicyk8s.io/v1alpha2", "policyreports"),
}


class FakeCluster:
    """Lists objects, and keeps what is written."""

    def __init__(self, **objects: list[Any]) -> None:
        self.objects = objects
        self.kinds = dict(_KINDS)
        self.reports: dict[str, Any] = {}
        self.events: list[ObjectEvent] = []
        self.unlisted: set[str] = set()

    def forget_kinds(self) -> None:
        """Look at kinds again."""

    def find(self, kind: str) -> Resource | None:
        """Know a few kinds."""
        return self.kinds.get(kind)

    def list(self, resource: Resource, selector: str = "") -> list[Any]:
        """Return objects by their plural."""
        if resource.plural in self.unlisted:
            raise ClusterError("not allowed", 403)
        if resource.plural == "policyreports":
            return copy.deepcopy(list(self.reports.values()))
        return copy.deepcopy(self.objects.get(resource.plural, []))

    def apply(self, resource: Resource, document: Any) -> None:
        """Keep a report."""
        self.reports[document["metadata"]["namespace"]] = document

    def delete(self, resource: Resource, name: str, namespace: str) -> None:
        """Remove a report."""
        del self.reports[namespace]

    def record_event(self, event: ObjectEvent) -> None:
        """Keep an event."""
        self.events.append(event)


class RecordingMemgate(FakeMemgate):
    """A server that also takes records for the audit."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.recorded: dict[str, AuditEntry] = {}
        self.refuses = False

    def record_decisions(self, entries: list[AuditEntry]) -> None:
        """Keep them by their id."""
        if self.refuses:
            raise RefusedError("this needs a key with the role admin", code="FORBIDDEN", status=403)
        self.recorded |= {entry.id: entry for entry in entries}


def _pod(name: str, namespace: str = "team", **more: Any) -> Any:
    pod = make_pod(**{"nodeSelector": T4, **more})
    pod["metadata"] |= {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return pod


def _audit(
    cluster: FakeCluster, size_bytes: int = GIB, **settings: Any
) -> tuple[BackgroundAudit, RecordingMemgate]:
    memgate = RecordingMemgate(size_bytes)
    made = AdmissionSettings(admission_audit_seconds=300, **settings)
    return BackgroundAudit(cluster, memgate, made), memgate  # type: ignore[arg-type]


def test_what_does_not_fit_is_recorded_told_and_reported() -> None:
    """And nothing of it is changed: there is not even a way to."""
    job = make_job(_pod("train"))
    cluster = FakeCluster(jobs=[job], pods=[_pod("small")])
    audit, memgate = _audit(cluster, 64 * GIB)

    audit.go_round()

    by_name = {entry.name: entry for entry in memgate.recorded.values()}
    assert by_name["train"].decision == "reject"
    assert (by_name["train"].done, by_name["train"].would) == ("noted", "refused")
    assert by_name["train"].namespace == "team"
    assert {event.reason for event in cluster.events} == {"MemgateDoesNotFit"}
    assert {event.about for event in cluster.events} == {"train", "small"}
    assert all(event.name.startswith("memgate-") for event in cluster.events)
    report = cluster.reports["team"]
    assert report["summary"] == {"pass": 0, "fail": 2, "warn": 0, "error": 0, "skip": 0}
    assert report["results"][0]["resources"][0]["kind"] in ("Job", "Pod")
    assert "does not fit" in report["results"][0]["message"]


def test_a_version_of_reports_with_other_fields_is_not_written() -> None:
    """An API server would drop them, and the report say nothing."""
    cluster = FakeCluster(pods=[_pod("small")])
    cluster.kinds["PolicyReport.wgpolicyk8s.io"] = Resource("wgpolicyk8s.io/v1alpha1", "reports")
    audit, memgate = _audit(cluster)
    audit.go_round()
    assert cluster.reports == {}
    assert len(memgate.recorded) == 1


def test_what_has_no_answer_keeps_nothing_else_waiting() -> None:
    """Fifty are asked about in a round, others in the next; what needs none is seen at once."""
    pods = [_pod(f"open-{number}") for number in range(70)]
    cluster = FakeCluster(pods=[*pods, _pod("plain", annotations={})])
    audit, memgate = _audit(cluster)
    memgate.said = NotDoneError("0" * 32, 0)
    audit.go_round()
    assert [entry.name for entry in memgate.recorded.values()] == ["plain"]
    names = [one["resources"][0]["name"] for one in cluster.reports["team"]["results"]]
    assert len(names) == 51
    assert "open-49" in names
    audit.go_round()
    names = [one["resources"][0]["name"] for one in cluster.reports["team"]["results"]]
    assert {"open-50", "open-69", "open-0"} <= set(names)


def test_the_same_finding_is_recorded_once() -> None:
    """By however many programs: the id of a record says what it is about."""
    cluster = FakeCluster(pods=[_pod("train")])
    first, one = _audit(cluster, 64 * GIB)
    second, two = _audit(cluster, 64 * GIB)
    first.go_round()
    second.go_round()

    assert set(one.recorded) == set(two.recorded)
    assert len({event.name for event in cluster.events}) == 1


def test_in_audit_nobody_is_told() -> None:
    """The mode says so; the record and the report have it."""
    cluster = FakeCluster(pods=[_pod("train")])
    audit, memgate = _audit(cluster, 64 * GIB, admission_mode="audit")
    audit.go_round()

    (entry,) = memgate.recorded.values()
    assert (entry.decision, entry.mode) == ("reject", "audit")
    assert cluster.events == []
    assert cluster.reports["team"]["summary"]["fail"] == 1


def test_what_has_no_description_is_counted_and_a_near_miss_is_named() -> None:
    """Also where the API server does not ask about it."""
    plain = _pod("plain", annotations={})
    near = _pod("near", annotations={"memgate.dev/jobs": "{}"})
    no_gpu = _pod("no-gpu", annotations={}, limits={})
    cluster = FakeCluster(pods=[plain, near, no_gpu])
    audit, memgate = _audit(cluster)
    audit.go_round()

    by_name = {entry.name: entry for entry in memgate.recorded.values()}
    assert {name: entry.decision for name, entry in by_name.items()} == {
        "plain": "undescribed",
        "near": "undescribed",
    }
    assert "memgate.dev/jobs" in by_name["near"].near_miss
    assert cluster.reports["team"]["summary"]["skip"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "now"}},
        {"metadata": {"ownerReferences": [{"kind": "Job"}]}},
        {"status": {"phase": "Succeeded"}},
        {"status": {"conditions": [{"type": "Complete", "status": "True"}]}},
        {"metadata": {"namespace": "kube-system"}},
        {"metadata": {"namespace": "ignored"}},
    ],
    ids=["deleted", "owned", "ended pod", "ended job", "excluded", "ignored"],
)
def test_what_is_past_or_left_alone_is_not_judged(change: Any) -> None:
    """Its owner is judged instead, or nobody wants to know."""
    pod = _pod("train")
    pod["metadata"] |= change.get("metadata", {})
    pod["status"] = change.get("status", {})
    cluster = FakeCluster(pods=[pod], namespaces=[{"metadata": {"name": "ignored"}}])
    audit, memgate = _audit(cluster, 64 * GIB)
    audit.go_round()

    assert memgate.recorded == {}
    assert cluster.reports == {}


def test_a_wrong_description_is_found_too() -> None:
    """Whoever wrote it believes that the job was checked."""
    cluster = FakeCluster(pods=[_pod("train", annotations={"memgate.dev/job": '{"nonsense": 1}'})])
    audit, memgate = _audit(cluster)
    audit.go_round()

    (entry,) = memgate.recorded.values()
    assert entry.decision == "bad_spec"
    assert "model is missing" in entry.why
    assert [event.reason for event in cluster.events] == ["MemgateWrongDescription"]


def test_a_kind_that_cannot_be_listed_and_an_audit_that_refuses_stop_nothing() -> None:
    """The log says so, and the rest is done."""
    cluster = FakeCluster(pods=[_pod("train")], jobs=[make_job(_pod("hidden"))])
    cluster.unlisted = {"jobs"}
    audit, memgate = _audit(cluster, 64 * GIB)
    memgate.refuses = True
    audit.go_round()

    assert cluster.reports["team"]["summary"]["fail"] == 1


def test_a_report_goes_with_its_last_object_and_needs_its_kind() -> None:
    """Where the cluster has no such kind, there is none."""
    cluster = FakeCluster(pods=[_pod("train")])
    audit, _ = _audit(cluster)
    audit.go_round()
    assert cluster.reports["team"]["summary"]["pass"] == 1
    cluster.objects = {}
    audit.go_round()
    assert cluster.reports == {}

    del cluster.kinds["PolicyReport.wgpolicyk8s.io"]
    cluster.objects = {"pods": [_pod("train")]}
    audit.go_round()
    assert cluster.reports == {}


def test_a_large_report_keeps_what_is_wrong() -> None:
    """An object of Kubernetes may have 1.5 MB."""
    fine = JudgedObject(_pod("fine"), {"decision": "admit", "rule": "cluster"})
    bad = JudgedObject(_pod("bad"), {"decision": "reject", "rule": "cluster", "why": "x" * 2000})
    report = make_report("wgpolicyk8s.io/v1alpha2", "team", [fine] * 2000 + [bad] * 10, 1)

    assert report["summary"]["pass"] == 2000
    assert [one["result"] for one in report["results"][:11]] == ["fail"] * 10 + ["pass"]
    assert len(json.dumps(report)) < 1_000_000


@pytest.mark.parametrize(
    ("record", "want"),
    [
        ({}, None),
        ({"done": "admitted", "decision": "admit", "mode": "enforce"}, None),
        ({"done": "refused", "decision": "reject", "mode": "enforce"}, "MemgateRefused"),
        ({"done": "held", "decision": "unanswered", "mode": "enforce"}, "MemgateHeld"),
        ({"done": "admitted", "decision": "unanswered", "mode": "enforce"}, "MemgateNoAnswer"),
        (
            {"done": "admitted", "would": "refused", "decision": "reject", "mode": "warn"},
            "MemgateWouldRefuse",
        ),
        ({"done": "admitted", "would": "refused", "decision": "reject", "mode": "audit"}, None),
    ],
)
def test_an_event_tells_what_is_news(record: dict[str, Any], want: str | None) -> None:
    """Nothing in audit, and nothing of what simply fits."""
    event = tell_decision(_pod("train"), record)

    assert (event.reason if event else None) == want
