"""Modes and policies of the webhooks, on a real Valkey: only ``enforce`` refuses or changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memgate.units import GIB
from tests.admission import JOB, T4, answer_work, make_job, make_pod, make_review
from tests.integration.gates import Gate
from tests.running import wait_until

_ON_T4 = make_review(make_pod(nodeSelector=T4))
_WRONG = make_review(make_pod(annotations={JOB: "{batch_size: 0}"}, nodeSelector=T4))
_BARE = make_review(make_pod(annotations={}, nodeSelector=T4))


def _audited(gate: Gate, number: int, **wanted: str) -> list[dict[str, Any]]:
    """Return the records of the audit, the oldest first, once there are so many."""

    def read() -> list[dict[str, Any]]:
        entries = gate.client.get("/audit", params=wanted).json()["entries"]
        return list(reversed(entries))

    wait_until(lambda: len(read()) >= number, f"{number} records", 20)
    return read()


def _review(**metadata: Any) -> dict[str, Any]:
    review = copy.deepcopy(_ON_T4)
    review["request"]["object"]["metadata"] |= metadata
    return review


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_where_nothing_is_enforced_nothing_is_refused_or_changed(
    make_gate: Callable[..., Gate], mode: str
) -> None:
    """What does not fit, a mistake and what may be held; all of it is in the audit, with whose."""
    gate = make_gate(admission_mode=mode, admission_on_timeout="hold")
    unanswered = gate.ask("validate", _ON_T4)
    held = gate.ask("mutate", _ON_T4)
    gate.learn(_ON_T4, 20 * GIB)
    said = [gate.ask("validate", review) for review in (_ON_T4, _WRONG, _BARE)]

    assert all(one["allowed"] for one in (unanswered, held, *said))
    assert "patch" not in held
    if mode == "audit":
        assert not any("warnings" in one for one in (unanswered, *said))
    else:
        told = "memgate only warns here; otherwise this would be refused: does not fit on t4"
        assert said[0]["warnings"][0].startswith(told)
        assert "would be refused" in said[1]["warnings"][0]
    records = [one for one in _audited(gate, 4) if one["done"] != "noted"]
    assert [(one["decision"], one["would"]) for one in records] == [
        ("unanswered", "held"),
        ("reject", "refused"),
        ("bad_spec", "refused"),
        ("undescribed", ""),
    ]
    assert {(one["user"], one["namespace"], one["mode"]) for one in records} == {
        ("ada", "team", mode)
    }


def test_a_policy_is_changed_without_a_restart(
    make_gate: Callable[..., Gate], tmp_path: Path
) -> None:
    """By namespace, user and label; a broken one leaves the last good one in force."""
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"mode": "enforce"}))
    gate = make_gate(admission_policy=path)
    gate.learn(_ON_T4, 20 * GIB)
    allowed = []
    for policy in (
        {"mode": "audit", "rules": [{"namespace": "tea*", "mode": "enforce"}]},
        {"mode": "enforce", "rules": [{"user": "ada", "mode": "warn"}]},
        {"mode": "off"},
        {"exempt": [{"group": "research"}]},
        {"exempt": [{"label": {"team": "infra"}}]},
    ):
        path.write_text(json.dumps(policy))
        allowed.append(gate.ask("validate", _ON_T4)["allowed"])
    labelled = gate.ask("validate", _review(labels={"team": "infra"}))

    assert allowed == [False, True, True, True, False]
    assert labelled["allowed"]
    rules = [one["rule"] for one in _audited(gate, 6)]
    assert rules == ["rules[1]", "rules[1]", "rules[1]", "exempt[1]", "cluster", "exempt[1]"]


def test_what_was_let_in_without_an_answer_is_followed_up(
    make_gate: Callable[..., Gate],
) -> None:
    """Once there is a verdict, the audit has it, and nobody asks again for that."""
    gate = make_gate()
    assert gate.ask("validate", _ON_T4)["allowed"]
    for job_id in gate.store.open_jobs():
        work = gate.store.read(job_id).work
        gate.store.finish(job_id, answer_work(work, 20 * GIB).model_dump_json())

    first, second = _audited(gate, 2)
    assert (first["decision"], first["done"]) == ("unanswered", "admitted")
    assert (second["decision"], second["done"]) == ("reject", "noted")


def test_what_is_undescribed_is_refused_where_the_policy_says_so(
    make_gate: Callable[..., Gate], tmp_path: Path
) -> None:
    """It is counted in any case; what a controller creates for another object is not."""
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"rules": [{"namespace": "team", "on": {"undescribed": "reject"}}]}))
    gate = make_gate(admission_policy=path)
    made = copy.deepcopy(_BARE)
    made["request"]["object"]["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "x"}]
    pretended = copy.deepcopy(made)
    made["request"]["userInfo"] = {"username": "system:serviceaccount:kube-system:job-controller"}
    own = copy.deepcopy(made)
    own["request"]["userInfo"] = {"username": "system:serviceaccount:team:default"}

    refused = gate.ask("validate", _BARE)

    assert not refused["allowed"]
    assert (
        "needs a description here: the annotation memgate.dev/job" in refused["status"]["message"]
    )
    assert gate.ask("validate", made)["allowed"]
    for review in (pretended, own):  # anybody may write an owner into what they make
        assert not gate.ask("validate", review)["allowed"]
    assert [one["done"] for one in _audited(gate, 3, decision="undescribed")] == ["refused"] * 3


@pytest.mark.parametrize("name", ["a GPU", "without the annotation"])
def test_an_edit_does_not_make_something_undescribed(
    make_gate: Callable[..., Gate], tmp_path: Path, name: str
) -> None:
    """Neither a GPU that comes later, nor an annotation that goes; other edits are let through."""
    path = tmp_path / "policy.json"
    path.write_text('{"on": {"undescribed": "reject"}}')
    gate = make_gate(admission_policy=path, rehearsal_image="memgate-worker:1")
    bare = make_job(make_pod(annotations={}, nodeSelector=T4))
    old = copy.deepcopy(bare)
    if name == "a GPU":
        old["spec"]["template"]["spec"]["containers"] = [{"name": "main"}]
    else:
        old["spec"]["template"]["metadata"] = make_pod(nodeSelector=T4)["metadata"]
    kind = ("Deployment", "apps")

    refused = gate.ask("validate", make_review(bare, *kind, operation="UPDATE", oldObject=old))

    assert "needs a description here" in refused["status"]["message"]
    scaled = copy.deepcopy(bare)
    scaled["spec"]["replicas"] = 3
    assert gate.ask("validate", make_review(scaled, *kind, operation="UPDATE", oldObject=bare))[
        "allowed"
    ]
    path.write_text('{"on": {"undescribed": "rehearse"}}')
    edited = gate.mutated(make_review(bare, "Job", "batch", operation="UPDATE", oldObject=old))
    assert "suspend" not in edited["request"]["object"]["spec"]  # that would end its pods
    assert [one["done"] for one in _audited(gate, 1, decision="undescribed")] == ["refused"]


def test_who_is_exempt_is_recorded_without_a_description(
    make_gate: Callable[..., Gate], tmp_path: Path
) -> None:
    """As everywhere: nothing is said or done, and the audit has it."""
    path = tmp_path / "policy.json"
    path.write_text('{"on": {"undescribed": "reject"}, "exempt": [{"name": "ops", "user": "ada"}]}')
    gate = make_gate(admission_policy=path)

    assert gate.ask("validate", _BARE) == {"uid": "705ab4f5", "allowed": True}
    (said,) = _audited(gate, 1, decision="exempt")
    assert (said["user"], said["rule"], said["done"]) == ("ada", "ops", "admitted")


@pytest.mark.parametrize(
    ("key", "want"),
    [
        ("memgate.dev/jobs", "has no effect: write memgate.dev/job"),
        ("memgate.io/job", "has no effect: write memgate.dev/job"),
        ("memgate.dev/job-config-map", "has no effect: write memgate.dev/job-configmap"),
        ("memgate.dev/owner", "the annotation memgate.dev/owner has no effect"),
    ],
)
def test_a_misspelt_annotation_is_told(gate: Gate, key: str, want: str) -> None:
    """It would pass in silence, and its author would believe that the job is checked."""
    said = gate.ask("validate", make_review(make_pod(annotations={key: "{}"}, nodeSelector=T4)))

    assert said["allowed"]
    assert want in said["warnings"][0]


def test_one_apply_is_not_both_held_and_denied(make_gate: Callable[..., Gate]) -> None:
    """The first webhook says nothing: the second may know more by then."""
    gate = make_gate(admission_on_timeout="hold")
    held = gate.ask("mutate", _ON_T4)

    assert "patch" in held
    assert "warnings" not in held
