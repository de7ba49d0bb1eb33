"""What one review may cost, whatever is in it: time, questions, words. On a real Valkey."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memgate.units import MIB
from memgate_service.admission.kubernetes.config_maps import ConfigMaps
from tests.admission import JOB, SPEC, T4, make_pod, make_review, read_recorded
from tests.integration.gates import Gate

_RECORDED = (
    *("create-job", "create-cronjob", "create-pytorchjob", "create-trainjob", "create-rayjob"),
    *("create-jobset", "create-statefulset-volcano", "create-pod-hami", "create-pod-kai"),
    *("update-label", "create-job-kueue"),
)
_ODD: list[Any] = [
    *(None, True, 0, -1, 1e300, "", "x", "²", "~", "nan", "1e999", "0", [], [None], {}, {"x": {}}),
    *('{"/spec": 1}', '{"/metadata/annotations/²": "x"}', "{", "\x00"),
    *(["Always"], {"name": "memgate.dev/estimate"}, {"nvidia.com/gpu": [1]}),
]


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where in a document something can be put in another's place."""
    if isinstance(value, dict):
        return [path, *(leaf for key in value for leaf in _leaves(value[key], (*path, key)))]
    if isinstance(value, list):
        return [path, *(leaf for i, one in enumerate(value) for leaf in _leaves(one, (*path, i)))]
    return [path]


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_no_object_breaks_the_webhooks(gate: Gate, data: st.DataObject) -> None:
    """Recorded objects with something odd in place of some of their parts get an answer."""
    review = copy.deepcopy(read_recorded(data.draw(st.sampled_from(_RECORDED))))
    for _ in range(data.draw(st.integers(1, 3))):
        side = data.draw(st.sampled_from(["object", "oldObject"]))
        document = review["request"].get(side)
        if not isinstance(document, dict):
            continue
        paths = [path for path in _leaves(document) if path]
        *parents, last = data.draw(st.sampled_from(paths))
        inside: Any = document
        for key in parents:
            inside = inside[key]
        inside[last] = copy.deepcopy(data.draw(st.sampled_from(_ODD)))
    review["request"]["operation"] = data.draw(st.sampled_from(["CREATE", "UPDATE"]))
    for verb in ("mutate", "validate"):
        gate.ask(verb, review)


@pytest.mark.parametrize(
    "filled",
    [
        {"/spec/containers/²": "x"},
        {"/spec/containers/0": {}, "/spec/containers/00": {}},
        {"/metadata/annotations": {}, "/metadata/annotations/memgate.dev~1filled": ""},
        {"/spec/securityContext/runAsNonRoot": "yes"},
        {"/spec": {"securityContext": {"runAsNonRoot": "yes"}}},
    ],
)
def test_nobody_has_us_take_away_what_we_did_not_write(gate: Gate, filled: dict[str, Any]) -> None:
    """The note of what we filled in is the owner's to write; other webhooks' work stays."""
    spec = {"containers": [{}, {}], "securityContext": {"runAsNonRoot": "yes"}}
    if "/spec" in filled:
        spec = filled["/spec"]
    note = {"memgate.dev/filled": json.dumps(filled)}
    document = {"metadata": {"annotations": note}, "spec": {"template": {"spec": {}}} | spec}
    review = make_review(document, "Deployment", "apps", operation="UPDATE", oldObject=document)
    changed = gate.mutated(review)["request"]["object"]
    assert changed["spec"] == document["spec"]


@pytest.mark.parametrize("verb", ["mutate", "validate"])
def test_an_object_as_large_as_an_api_server_takes_is_looked_at(gate: Gate, verb: str) -> None:
    """Told as it was and as it shall be; else, with the policy Fail, nobody could change it."""
    env = [{"name": f"V{number}", "value": "x" * 1000} for number in range(2900)]
    old = make_pod(annotations={}, env=env)
    new = make_pod(annotations={}, env=env, more="x")
    review = make_review(new, operation="UPDATE", oldObject=old)
    assert len(json.dumps(review)) > 5 * MIB
    assert gate.ask(verb, review) == {"uid": review["request"]["uid"], "allowed": True}


def test_what_is_longer_than_any_review_is_not_read(gate: Gate) -> None:
    """There is a limit all the same."""
    review = make_review(make_pod(more="x" * 9 * MIB))
    answer = gate.client.post("/webhooks/kubernetes/validate", json=review)
    assert answer.status_code == 413


def test_an_object_has_few_jobs(gate: Gate) -> None:
    """Each is a question that somebody must work on."""
    tasks = [
        {"template": make_pod(annotations={JOB: json.dumps(SPEC | {"batch_size": size})})}
        for size in range(1, 500)
    ]
    review = make_review({"metadata": {}, "spec": {"tasks": tasks}}, "Job", "batch.volcano.sh")
    refused = gate.ask("validate", review)
    assert "has 499 different jobs" in refused["status"]["message"]
    assert gate.store.num_jobs() == 0


def test_an_object_causes_few_questions(gate: Gate) -> None:
    """However many GPUs it describes."""
    tasks = [
        {"template": make_pod(nodeSelector={"nvidia.com/gpu.memory": str(size)})}
        for size in range(10000, 10500)
    ]
    review = make_review({"metadata": {}, "spec": {"tasks": tasks}}, "Job", "batch.volcano.sh")
    refused = gate.ask("validate", review)
    assert "500 questions" in refused["status"]["message"]
    assert gate.store.num_jobs() == 0


def test_a_slow_cluster_takes_no_longer_than_there_is(
    make_gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several ConfigMaps and then the queue: one patience for all of it."""

    def read(self: ConfigMaps, namespace: str, reference: str) -> str:
        time.sleep(0.5)
        return json.dumps(SPEC)

    monkeypatch.setattr(ConfigMaps, "_read", read)
    gate = make_gate(admission_wait_seconds=20)
    tasks = [
        {"template": make_pod(annotations={"memgate.dev/job-configmap": name}, nodeSelector=T4)}
        for name in ("a", "b", "c", "d")
    ]
    document = {"metadata": {}, "spec": {"tasks": tasks[:2]}}
    for part in (tasks[:2], tasks):
        document = {"metadata": {}, "spec": {"tasks": part}}
        review = make_review(document, "Job", "batch.volcano.sh")
        start = time.monotonic()
        assert gate.ask("validate", review, timeout="2s")["allowed"]
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("verb", ["mutate", "validate"])
def test_what_is_nested_too_deeply_is_a_problem(gate: Gate, verb: str) -> None:
    """Not a crash."""
    deep: Any = "x"
    for _ in range(400):
        deep = {"x": [deep]}
    pod = make_pod(schedulerName="hami-scheduler", deep=deep)
    gate.learn(make_review(make_pod(schedulerName="hami-scheduler")), 1 << 30)
    path = f"/webhooks/kubernetes/{verb}"
    answer = gate.client.post(path, json=make_review(pod))
    assert answer.status_code in (200, 422), answer.text


def test_warnings_are_few_and_short(gate: Gate) -> None:
    """The API server cuts them at 4 KiB together."""
    tasks = [
        {"template": make_pod(nodeSelector={"nvidia.com/gpu.product": f"NVIDIA-{size}"})}
        for size in range(100)
    ]
    review = make_review({"metadata": {}, "spec": {"tasks": tasks}}, "Job", "batch.volcano.sh")
    warnings = gate.ask("validate", review)["warnings"]
    assert sum(map(len, warnings)) < 4096
    assert "90 more" in warnings[-1]


@pytest.mark.parametrize(
    "annotations",
    [
        {JOB: json.dumps(SPEC), "memgate.dev/gpu": "x" * 100_000},
        {JOB: json.dumps({"x" * 100_000: 1})},
        {JOB: "x" * 100_000},
        {"memgate.dev/job-configmap": "x" * 100_000},
        {"memgate.dev/job-configmap": "../secrets"},
        {"memgate.dev/job-configmap": ""},
    ],
    ids=["GPU", "field", "text", "name", "way out", "nothing"],
)
def test_long_texts_of_people_are_not_said_back_to_them(
    gate: Gate, annotations: dict[str, str]
) -> None:
    """An annotation may have 256 KiB; a message has less."""
    response = gate.ask("validate", make_review(make_pod(annotations=annotations)))
    assert not response["allowed"]
    assert len(response["status"]["message"]) <= 2000


def test_a_long_spec_is_read_quickly(gate: Gate) -> None:
    """Everybody else waits meanwhile."""
    lines = "".join(f"k{number}: [1, 2, 3, {{a: b}}]\n" for number in range(9000))
    start = time.monotonic()
    gate.ask("validate", make_review(make_pod(annotations={JOB: lines})))
    assert time.monotonic() - start < 1
