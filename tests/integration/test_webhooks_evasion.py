"""Ways round the gate that are none, and edits that are nobody's business: on a real Valkey."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from memgate.units import GIB
from tests.admission import JOB, SPEC, T4, make_job, make_pod, make_review, read_patch
from tests.integration.gates import Gate

_LARGER = {"memgate.dev/gpu": "h100-80", JOB: json.dumps(SPEC)}
_GATED: dict[str, Any] = {"nodeSelector": T4, "schedulingGates": [{"name": "memgate.dev/estimate"}]}


def _update(old: dict[str, Any], new: dict[str, Any], *kind: str, **more: Any) -> dict[str, Any]:
    return make_review(new, *kind, operation="UPDATE", oldObject=old, **more)


def test_an_annotation_makes_no_gpu_larger(gate: Gate) -> None:
    """A node's label says what the pod will really get."""
    review = make_review(make_pod(annotations=_LARGER, nodeSelector=T4))
    gate.learn(review, 20 * GIB)
    refused = gate.ask("validate", review)
    assert not refused["allowed"]
    assert "t4 has 14.56 GiB" in refused["status"]["message"]


@pytest.mark.parametrize(
    ("kind", "document", "freed"),
    [
        pytest.param(("Pod",), make_pod(**_GATED), {"schedulingGates": []}, id="pod"),
        pytest.param(
            ("Job", "batch"),
            make_job(make_pod(nodeSelector=T4), suspend=True),
            {"suspend": False},
            id="job",
        ),
    ],
)
def test_what_is_held_keeps_its_job(
    make_gate: Callable[..., Gate],
    kind: tuple[str, ...],
    document: dict[str, Any],
    freed: dict[str, Any],
) -> None:
    """Its owner may not take the annotation away, with the gate nor before it."""
    gate = make_gate(admission_on_timeout="hold")
    without = copy.deepcopy(document)
    without["metadata"]["annotations"] = {}
    resumed = copy.deepcopy(without)
    resumed["spec"] |= freed
    for changed in (without, resumed):
        refused = gate.ask("validate", _update(document, changed, *kind))
        assert not refused["allowed"]
        assert "memgate.dev/job" in refused["status"]["message"]

    admin = {"username": "root", "groups": ["system:masters"]}
    assert gate.ask("validate", _update(document, resumed, *kind, userInfo=admin))["allowed"]
    resumed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert gate.ask("validate", _update(document, resumed, *kind))["allowed"]


def test_a_suspended_job_may_lose_its_annotation_where_nothing_is_held(gate: Gate) -> None:
    """Somebody else suspended it then."""
    document = make_job(make_pod(nodeSelector=T4), suspend=True)
    without = copy.deepcopy(document) | {"metadata": {"name": "train"}}
    assert gate.ask("validate", _update(document, without, "Job", "batch"))["allowed"]


def test_a_running_job_is_never_suspended(make_gate: Callable[..., Gate]) -> None:
    """That would end its pods: an edit without an answer is refused instead, for now."""
    gate = make_gate(admission_on_timeout="hold")
    running = make_job(make_pod(nodeSelector=T4), suspend=False)
    edited = copy.deepcopy(running)
    edited["metadata"]["annotations"][JOB] = json.dumps(SPEC | {"batch_size": 2})
    review = _update(running, edited, "Job", "batch")
    assert read_patch(gate.ask("mutate", review)) == []
    assert gate.ask("validate", review)["status"]["code"] == 429


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param({"nodeSelector": T4 | {"zone": "b"}}, id="another zone"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, id="tolerations"),
        pytest.param(
            {
                "containers": [
                    {"name": "train", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "9"}}}
                ]
            },
            id="more processors",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
                            ]
                        }
                    }
                }
            },
            id="affinity for something else",
        ),
    ],
)
def test_edits_of_other_things_pass(gate: Gate, edit: dict[str, Any]) -> None:
    """A Deployment that would be refused today can be changed where that changes no answer."""
    document = make_job(make_pod(nodeSelector=T4))
    gate.learn(make_review(document, "Deployment", "apps"), 80 * GIB)
    edited = copy.deepcopy(document)
    edited["spec"]["template"]["spec"] |= edit
    review = _update(document, edited, "Deployment", "apps")
    for verb in ("mutate", "validate"):
        assert gate.ask(verb, review) == {"uid": review["request"]["uid"], "allowed": True}


def test_a_pod_that_has_its_node_gets_no_gate(make_gate: Callable[..., Gate]) -> None:
    """Kubernetes takes no pod with both; it is refused until there is an answer."""
    gate = make_gate(admission_on_timeout="hold")
    review = make_review(make_pod(nodeSelector=T4, nodeName="n1"))
    assert read_patch(gate.ask("mutate", review)) == []
    assert gate.ask("validate", review)["status"]["code"] == 429


def test_a_dry_run_is_not_told_to_try_again(make_gate: Callable[..., Gate]) -> None:
    """Nobody asks meanwhile, so nothing would have changed; and nothing gets in by it."""
    gate = make_gate(admission_on_timeout="reject")
    response = gate.ask("validate", make_review(make_pod(nodeSelector=T4), dryRun=True))
    assert response["allowed"]
    assert "nobody has asked before" in response["warnings"][0]


def test_what_was_refused_and_mended_waits_again(make_gate: Callable[..., Gate]) -> None:
    """So that the controller lets it go."""
    gate = make_gate(admission_on_timeout="hold")
    refused = make_job(make_pod(nodeSelector=T4), suspend=True)
    refused["metadata"]["labels"] = {"memgate.dev/held": "rejected"}
    mended = copy.deepcopy(refused)
    mended["metadata"]["annotations"][JOB] = json.dumps(SPEC | {"batch_size": 2})
    review = _update(refused, mended, "Job", "batch")
    changed = gate.mutated(review)["request"]["object"]
    assert changed["metadata"]["labels"] == {"memgate.dev/held": "waiting"}


def test_a_job_whose_pods_are_elsewhere_is_said_not_to_be_checked(gate: Gate) -> None:
    """Whoever wrote the annotation thinks that it does something."""
    document = {"metadata": {"annotations": {JOB: json.dumps(SPEC)}}, "spec": {}}
    review = make_review(document, "RayJob", "ray.io")
    response = gate.ask("validate", review)
    assert response["allowed"]
    assert "not checked" in response["warnings"][0]
