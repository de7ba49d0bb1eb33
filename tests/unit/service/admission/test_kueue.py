"""What becomes of Kueue's admission checks, decided without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from memgate.decision import Decision
from memgate.explanation import Explanation
from memgate_service.admission.core.judgement import Finding, judge
from memgate_service.admission.kubernetes.objects import find_pods, select_node
from memgate_service.admission.kubernetes.places import find_places
from memgate_service.admission.kubernetes.settings import AdmissionSettings, Shape
from memgate_service.admission.kueue.controller import (
    Reply,
    activate,
    choose_state,
    find_waiting,
    place_pods,
    write_reply,
)
from tests.admission import make_pod
from tests.integration.gates import apply_patch

_NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
_T4 = {"nvidia.com/gpu.product": "Tesla-T4"}
_A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


def make_workload(
    *conditions: str, state: str = "Pending", flavor: str = "t4", **spec: Any
) -> dict[str, Any]:
    """Make a Workload with two checks, the second of them ours."""
    pod = make_pod(**spec)
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    check = {"state": state, "message": "", "lastTransitionTime": "2026-11-16T11:59:00Z"}
    return {
        "metadata": {"name": "train", "namespace": "team", "resourceVersion": "7"},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {
            "admission": {
                "podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": flavor}}]
            },
            "admissionChecks": [{"name": "other", **check}, {"name": "memgate", **check}],
            "conditions": [{"type": one, "status": "True"} for one in conditions],
        },
    }


@pytest.mark.parametrize(
    ("workload", "want"),
    [
        (make_workload("QuotaReserved"), [1]),
        (make_workload(), []),
        (make_workload("QuotaReserved", "Evicted"), []),
        (make_workload("QuotaReserved", "Finished"), []),
        (make_workload("QuotaReserved", "Admitted"), []),
        (make_workload("QuotaReserved", state="Ready"), []),
        ({"status": {"conditions": "nonsense", "admissionChecks": 3}}, []),
    ],
    ids=["reserved", "queued", "evicted", "finished", "runs", "answered", "nonsense"],
)
def test_a_check_is_answered_while_kueue_waits_for_it(
    workload: dict[str, Any], want: list[int]
) -> None:
    """Neither before quota is reserved nor in the middle of an eviction."""
    assert list(find_waiting(workload, {"memgate"})) == want


def test_a_flavor_says_on_which_gpu_a_job_will_run() -> None:
    """Though the pod names none."""
    (pod,) = place_pods(make_workload(flavor="a100"), {"t4": _T4, "a100": _A100})
    assert [place.gpu.name for place in find_places(pod, ())] == ["a100-80"]


def test_a_flavor_settles_what_a_pod_left_open() -> None:
    """A pod that may run on either of two runs on the one that Kueue took."""
    rule = {"key": "nvidia.com/gpu.product", "operator": "In"}
    values = [*_T4.values(), *_A100.values()]
    terms = [{"matchExpressions": [{**rule, "values": values}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    workload = make_workload(affinity={"nodeAffinity": required})

    (pod,) = place_pods(workload, {"t4": _T4})
    (elsewhere,) = place_pods(workload, {"t4": {"zone": "north"}})

    assert [place.gpu.name for place in find_places(pod, ())] == ["t4"]
    assert [place.gpu.name for place in find_places(elsewhere, ())] == ["t4", "a100-80"]


@pytest.mark.parametrize(
    ("owner", "group"),
    [
        ({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}, "together"),
        ({"apiVersion": "ray.io/v1", "kind": "RayJob"}, "at_most"),
        ({"apiVersion": "batch/v1", "kind": "Job"}, "perhaps"),
        ({"apiVersion": "v1", "kind": "Pod"}, "separate"),
        ({"apiVersion": "example.org/v1", "kind": "Something"}, "perhaps"),
    ],
)
def test_the_owner_says_whether_pods_are_one_job(owner: dict[str, str], group: str) -> None:
    """A Workload itself does not; it says how many there are."""
    workload = make_workload(nodeSelector=_T4)
    workload["metadata"]["ownerReferences"] = [owner]
    workload["spec"]["podSets"][0]["count"] = 3
    (pod,) = place_pods(workload, {})

    assert (pod.copies.group, pod.copies.number) == (group, 1 if group == "separate" else 3)


def test_a_workload_without_flavors_is_as_it_is_written() -> None:
    """A queue may have one flavor without labels, and Kueue may have chosen none yet."""
    workload = make_workload(nodeSelector=_T4)
    workload["status"].pop("admission")
    pods = find_pods(workload, Shape(templates=("/spec/podSets/*/template",), pods="perhaps"))
    assert place_pods(workload, {}) == pods
    assert pods[0].nodes == (select_node(_T4),)


@pytest.mark.parametrize(
    ("decision", "policy", "waited", "want"),
    [
        (Decision.ADMIT, "admit", 0, "Ready"),
        (Decision.REJECT, "admit", 0, "Rejected"),
        (Decision.UNCERTAIN, "admit", 0, "Ready"),
        (Decision.UNCERTAIN, "reject", 0, "Rejected"),
        (Decision.UNCERTAIN, "hold", 99, "Pending"),
        (Decision.UNKNOWN, "admit", 24, "Pending"),
        (Decision.UNKNOWN, "admit", 25, "Ready"),
        (Decision.UNKNOWN, "reject", 25, "Retry"),
        (Decision.UNKNOWN, "hold", 25, "Pending"),
    ],
)
def test_the_policy_is_that_of_the_webhooks(
    decision: Decision, policy: Any, waited: int, want: str
) -> None:
    """But there is time: without an answer it comes in only after the wait."""
    settings = AdmissionSettings(admission_on_timeout=policy, admission_on_uncertain=policy)
    rules = replace(settings.policy, patience_seconds=settings.admission_wait_seconds)
    explanation = Explanation(headline="why", why=[], helps=[])
    finding = Finding(decision=decision, explanation=explanation)
    judgement = judge([finding], rules, waited_seconds=waited)
    assert choose_state(judgement) == Reply(want, "memgate: why")


def test_what_has_no_job_of_ours_is_let_in_and_said_so() -> None:
    """Who forgot the annotation can see it."""
    said = choose_state(None)
    assert said.state == "Ready"
    assert "memgate.dev/job" in said.message


def test_an_answer_changes_our_check_and_nothing_else() -> None:
    """It has the time of the change, and fails if the Workload changed meanwhile."""
    workload = make_workload("QuotaReserved")

    test, change = write_reply(workload, 1, Reply("Retry", "busy"), _NOW)

    assert test == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert change == {
        "op": "replace",
        "path": "/status/admissionChecks/1",
        "value": {
            "name": "memgate",
            "state": "Retry",
            "message": "busy",
            "lastTransitionTime": "2026-11-16T12:00:00Z",
            "requeueAfterSeconds": 60,
        },
    }


def test_a_check_that_waits_on_keeps_the_time_since_when() -> None:
    """Else it would wait for ever; and the same words are not written twice."""
    workload = make_workload("QuotaReserved")
    patch = write_reply(workload, 1, Reply("Pending", "no answer yet"), _NOW)
    said = patch[1]["value"]
    assert said["lastTransitionTime"] == "2026-11-16T11:59:00Z"

    workload["status"]["admissionChecks"][1] = said
    assert write_reply(workload, 1, Reply("Pending", "no answer yet"), _NOW) == []


def test_kueue_is_told_once_that_somebody_answers() -> None:
    """What others said of the check stays."""
    other = {"type": "Other", "status": "False"}
    check: dict[str, Any] = {"metadata": {"name": "memgate", "generation": 2}}
    apply_patch(check, activate(check, _NOW))
    (active,) = check["status"]["conditions"]
    assert (active["type"], active["status"], active["observedGeneration"]) == ("Active", "True", 2)
    assert activate(check, _NOW) == []

    check["status"]["conditions"] = [other, {**active, "status": "False"}]
    apply_patch(check, activate(check, _NOW))
    assert check["status"]["conditions"] == [other, active]
