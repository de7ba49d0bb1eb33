"""What the mutating webhook changes, on a real Valkey: objects are held and right-sized."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memgate.units import GIB, MIB
from memgate_service.admission.kubernetes.patches import take_back
from tests.admission import JOB, SPEC, T4, make_job, make_pod, make_review, read_patch
from tests.integration.gates import Gate, apply_patch


def test_a_released_job_is_judged_again(make_gate: Callable[..., Gate]) -> None:
    """Its owner may not resume what has no answer; those whom the operator names may."""
    gate = make_gate(admission_on_timeout="hold")
    created = make_review(make_job(make_pod(nodeSelector=T4)), "Job", "batch")
    held = gate.mutated(created)["request"]["object"]
    assert held["spec"]["suspend"] is True
    assert held["metadata"]["labels"] == {"memgate.dev/held": "waiting"}
    waiting = gate.ask("validate", make_review(held, "Job", "batch"))
    assert waiting["allowed"]
    assert "held until there is an answer" in waiting["warnings"][0]

    resumed = copy.deepcopy(held)
    resumed["spec"]["suspend"] = False
    update = {"operation": "UPDATE", "oldObject": held}
    by_owner = make_review(resumed, "Job", "batch", **update)
    undone = gate.ask("mutate", by_owner)
    assert "held until there is an answer" in undone["warnings"][0]
    refused = gate.ask("validate", by_owner)
    assert refused["status"]["code"] == 429

    admin = {"username": "root", "groups": ["system:masters"]}
    by_admin = make_review(resumed, "Job", "batch", userInfo=admin, **update)
    assert "released by hand" in gate.ask("validate", by_admin)["warnings"][0]

    gate.learn(by_owner, GIB)
    assert gate.ask("validate", by_owner)["allowed"]


def test_what_is_held_for_doubts_is_not_said_to_wait_for_an_answer(
    make_gate: Callable[..., Gate],
) -> None:
    """There will be no other: somebody must change it, or release it."""
    gate = make_gate(admission_on_uncertain="hold")
    review = make_review(make_job(make_pod(nodeSelector=T4)), "Job", "batch")
    gate.learn(review, int(14.1 * GIB))
    held = gate.mutated(review)
    assert held["request"]["object"]["spec"]["suspend"] is True
    warning = " ".join(gate.ask("validate", held)["warnings"])
    assert "held until it is changed, or released by somebody who may: may not fit" in warning


def test_what_is_let_in_without_an_answer_is_labelled_where_it_may_be_stopped(
    make_gate: Callable[..., Gate], tmp_path: Path
) -> None:
    """For the controller, which suspends it if it does not fit; nowhere else, and not for ever."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"on": {"late": "reject"}}')
    review = make_review(make_job(make_pod(nodeSelector=T4)), "Job", "batch")
    gate = make_gate(admission_policy=policy)
    labelled = gate.mutated(review)["request"]["object"]["metadata"]["labels"]
    assert labelled == {"memgate.dev/late": "waiting"}
    gate.learn(review, GIB)
    assert "labels" not in gate.mutated(review)["request"]["object"]["metadata"]


def test_nothing_is_held_for_a_rehearsal_that_nobody_does(
    make_gate: Callable[..., Gate], tmp_path: Path
) -> None:
    """The policy may say so before rehearsals are set up."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"on": {"undescribed": "rehearse"}}')
    plain = make_job(make_pod(nodeSelector=T4, annotations={}))
    review = make_review(plain, "Job", "batch")
    for image, is_held in (("", False), ("memgate-worker:1", True)):
        gate = make_gate(admission_policy=policy, rehearsal_image=image)
        made = gate.mutated(review)["request"]["object"]
        assert made["spec"].get("suspend", False) is is_held


def test_a_pod_is_held_by_a_gate_and_a_deployment_by_its_pods(
    make_gate: Callable[..., Gate],
) -> None:
    """What cannot be suspended passes its annotation on to what can be held."""
    gate = make_gate(admission_on_timeout="hold")
    gated = gate.mutated(make_review(make_pod(nodeSelector=T4, schedulingGates=[{"name": "x"}])))
    assert gated["request"]["object"]["spec"]["schedulingGates"] == [
        {"name": "x"},
        {"name": "memgate.dev/estimate"},
    ]
    pod = make_pod(nodeSelector=T4)
    deployment = make_review(make_job(pod), "Deployment", "apps")
    assert not gate.ask("validate", deployment)["allowed"]
    changed = gate.mutated(deployment)
    template = changed["request"]["object"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {JOB: json.dumps(SPEC)}
    assert gate.ask("validate", changed)["allowed"]

    kueue = make_job(pod)
    kueue["metadata"] = pod["metadata"] | {"labels": {"kueue.x-k8s.io/queue-name": "q"}}
    changed = gate.mutated(make_review(kueue, "Job", "batch"))
    assert "suspend" not in changed["request"]["object"]["spec"]


@pytest.mark.parametrize(
    ("settings", "fields", "want"),
    [
        pytest.param(
            {},
            {"schedulerName": "hami-scheduler"},
            {"/spec/containers/0/resources/limits/nvidia.com~1gpumem": "8772"},
            id="HAMi",
        ),
        pytest.param(
            {"right_size": "hami"},
            {},
            {"/spec/containers/0/resources/limits/nvidia.com~1gpumem": "8772"},
            id="HAMi as its webhook, with any scheduler",
        ),
        pytest.param(
            {},
            {"limits": {"volcano.sh/vgpu-number": 1}},
            {"/spec/containers/0/resources/limits/volcano.sh~1vgpu-memory": "8772"},
            id="Volcano",
        ),
        pytest.param(
            {},
            {"limits": {}, "schedulerName": "kai-scheduler"},
            {"/metadata/annotations/gpu-memory": "8772"},
            id="KAI",
        ),
        pytest.param(
            {"admission_gpus": "h100-80-2g.20gb,h100-80-1g.10gb,h100-80-1g.20gb"},
            {"limits": {}},
            {"/spec/containers/0/resources/limits/nvidia.com~1mig-1g.10gb": "1"},
            id="MIG",
        ),
        pytest.param(
            {"admission_gpus": "a10g,rtx-4060,t4"},
            {},
            {"/spec/nodeSelector/nvidia.com~1gpu.product": "Tesla-T4"},
            id="node",
        ),
        pytest.param(
            {"admission_gpus": "NVIDIA-A100-80GB-PCIe,rtx-4060"},
            {},
            {"/spec/nodeSelector/nvidia.com~1gpu.product": "NVIDIA-A100-80GB-PCIe"},
            id="node, by the operator's label",
        ),
        pytest.param({"right_size": "none"}, {"schedulerName": "hami-scheduler"}, {}, id="none"),
        pytest.param({}, {}, {}, id="nothing that shows what the scheduler understands"),
        pytest.param(
            {}, {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}}, {}, id="too little"
        ),
        pytest.param(
            {"right_size": "hami,node-selector", "admission_gpus": "t4"},
            {
                "limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 90},
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            },
            {},
            id="a person said it",
        ),
    ],
)
def test_what_is_missing_is_filled_in_and_can_be_taken_back(
    make_gate: Callable[..., Gate],
    settings: dict[str, Any],
    fields: dict[str, Any],
    want: dict[str, str],
) -> None:
    """By the way the cluster's scheduler understands; never over what a person wrote."""
    gate = make_gate(**settings)
    review = make_review(make_pod(**fields))
    gate.learn(review, 8000 * MIB)

    mutated = gate.mutated(review)

    annotations = mutated["request"]["object"]["metadata"]["annotations"]
    assert json.loads(annotations.get("memgate.dev/filled", "{}")) == want
    assert read_patch(gate.ask("mutate", mutated)) == []
    apply_patch(mutated["request"]["object"], take_back(mutated["request"]["object"]))
    assert _pruned(mutated["request"]["object"]) == _pruned(review["request"]["object"])


def test_no_more_is_declared_than_the_card_has(gate: Gate) -> None:
    """What may fit is let in with a warning: it must not then wait for a card with more."""
    review = make_review(make_pod(schedulerName="hami-scheduler", nodeSelector=T4))
    gate.learn(review, int(14.1 * GIB))
    mutated = gate.mutated(review)
    limits = mutated["request"]["object"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpumem"] == str(int(14.56 * GIB) // MIB)
    assert gate.ask("validate", mutated)["allowed"]
    assert read_patch(gate.ask("mutate", mutated)) == []


def _pruned(value: Any) -> Any:
    """Leave out objects with nothing in them: they mean the same as none."""
    if not isinstance(value, dict):
        return value
    pruned = {key: _pruned(inner) for key, inner in value.items()}
    return {key: inner for key, inner in pruned.items() if inner != {}}


def test_what_was_filled_in_follows_the_job(gate: Gate) -> None:
    """A Deployment whose batch grows gets more; a figure that a person changed is theirs."""
    document = make_job(make_pod(schedulerName="hami-scheduler", nodeSelector=T4))
    created = make_review(document, "Deployment", "apps")
    gate.learn(created, 4000 * MIB)
    first = gate.mutated(created)["request"]["object"]
    limits = first["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpumem"] == "4720"

    grown = copy.deepcopy(first)
    grown["metadata"]["annotations"][JOB] = json.dumps(SPEC | {"batch_size": 128})
    update = make_review(grown, "Deployment", "apps", operation="UPDATE", oldObject=first)
    gate.learn(update, 8000 * MIB)
    second = gate.mutated(update)["request"]["object"]
    limits = second["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpumem"] == "8772"

    without = copy.deepcopy(second)
    del without["metadata"]["annotations"][JOB]
    removed = make_review(without, "Deployment", "apps", operation="UPDATE", oldObject=second)
    bare = gate.mutated(removed)["request"]["object"]
    assert bare["metadata"]["annotations"] == {}
    assert bare["spec"]["template"]["spec"] == document["spec"]["template"]["spec"]

    limits["nvidia.com/gpumem"] = "12000"
    by_hand = make_review(second, "Deployment", "apps", operation="UPDATE", oldObject=first)
    third = gate.mutated(by_hand)["request"]["object"]
    limits = third["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpumem"] == "12000"
    assert "memgate.dev/filled" not in third["metadata"]["annotations"]
