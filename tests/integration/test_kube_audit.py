"""What people and administrators see at a real API server: modes, events, reports."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memgate.audit import AuditEntry
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.settings import QueueSettings
from tests.admission import JOB, SPEC
from tests.integration.kube_gate import (
    LARGE,
    NAMESPACE,
    Webhooks,
    controlling,
    create,
    find_events,
    forget_webhooks,
    gating,
    let_edit,
    make_job,
    read_audit,
)
from tests.integration.kube_lab import Lab
from tests.policy_report import FIELDS
from tests.record_reviews import KINDS, read_example
from tests.running import running, wait_until
from tests.valkey import running_valkey

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Valkey server, and somebody who runs jobs."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with running_valkey() as url, running("memgate_worker", log, redis_url=url):
        yield url


@pytest.fixture(scope="module", autouse=True)
def namespace(lab: Lab) -> None:
    """Have the kinds of others' controllers, and the namespace that the webhooks look at."""
    for kind in KINDS:
        lab.install_kind(*kind)
    lab.make_namespace(NAMESPACE, webhook="yes")


Start = Callable[..., Webhooks]


@pytest.fixture
def start(lab: Lab, valkey: str, tmp_path: Path) -> Iterator[Start]:
    """Start the webhooks."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Webhooks:
            return stack.enter_context(gating(lab, valkey, tmp_path, **settings))

        yield make
    forget_webhooks(lab)


def _pod_of(job: dict[str, Any]) -> dict[str, Any]:
    metadata = copy.deepcopy(job["metadata"])
    spec = copy.deepcopy(job["spec"]["template"]["spec"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _deployment_of(job: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": job["metadata"]["name"]}
    spec = copy.deepcopy(job["spec"]["template"]["spec"]) | {"restartPolicy": "Always"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": copy.deepcopy(job["metadata"]),
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


#: of 200: what is submitted, and what the audit calls it
_MIXTURE: list[tuple[int, str, Any, str]] = [
    (70, "fits", {"spec": SPEC}, "admit"),
    (50, "large", {"spec": LARGE}, "reject"),
    (40, "wrong", {"spec": {"nonsense": True}}, "bad_spec"),
    (20, "unknown", {"spec": SPEC, "gpu": "NVIDIA-B100"}, "uncertain"),
    (20, "plain", {"spec": None}, "undescribed"),
]


def _submissions(mode: str) -> Iterator[dict[str, Any]]:
    for number, name, given, _ in _MIXTURE:
        for index in range(number):
            job = make_job(f"{mode}-{name}-{index}", **given)
            if given["spec"] is None:
                del job["metadata"]["annotations"][JOB]
            make = (lambda one: one, _pod_of, _deployment_of)[index % 3]
            yield make(job)


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_of_200_mixed_submissions_none_is_refused_held_or_changed(
    lab: Lab, start: Start, valkey: str, mode: str
) -> None:
    """Mistakes included; and each is in the audit with its owner, once decided."""
    start(admission_mode=mode, admission_events="true", kubeconfig=str(lab.kubeconfig))
    let_edit(lab, "ada")
    documents = list(_submissions(mode))
    assert len(documents) == 200
    with lab.as_account("ada", NAMESPACE) as ada:
        ran = ada.kubectl(
            *("create", "--filename=-", f"--namespace={NAMESPACE}", "--validate=false"),
            given=documents,
            check=False,
        )

    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 200
    assert ("Warning: memgate only warns here" in ran.stderr) is (mode == "warn")
    assert ("memgate" in ran.stderr) is (mode == "warn")
    found = lab.kubectl(
        "get", "jobs,pods,deployments", f"--namespace={NAMESPACE}", "--output=json"
    ).stdout
    ours = [
        one for one in json.loads(found)["items"] if one["metadata"]["name"].startswith(f"{mode}-")
    ]
    assert len(ours) == 200
    for one in ours:
        assert "memgate.dev/held" not in one["metadata"].get("labels", {})
        assert set(one["metadata"].get("annotations", {})) <= {JOB}
        assert not one["spec"].get("suspend")
        assert "schedulingGates" not in one["spec"]

    def records() -> list[AuditEntry]:
        return [one for one in read_audit(valkey, mode=mode) if one.name.startswith(f"{mode}-")]

    # what had no answer at first gets a second record once there is one
    want = Counter({decision: number for number, _, _, decision in _MIXTURE})

    def is_complete() -> bool:
        last = {one.name: one.decision for one in sorted(records(), key=lambda one: one.at)}
        return Counter(last.values()) == want

    wait_until(is_complete, "every submission is in the audit", 120)
    first = {one.name: one for one in records() if one.done != "noted"}
    assert len(first) == 200
    assert {one.user for one in records()} == {f"system:serviceaccount:{NAMESPACE}:ada"}
    assert {one.done for one in first.values()} == {"admitted"}
    events = json.loads(lab.kubectl("get", "events", "-n", NAMESPACE, "-o=json").stdout)["items"]
    told = [one for one in events if one["involvedObject"]["name"].startswith(f"{mode}-")]
    assert bool(told) is (mode == "warn")


def test_what_was_let_in_without_an_answer_is_followed_up(
    lab: Lab, start: Start, valkey: str
) -> None:
    """Its owner finds the answer in the object's events, the administrator in the audit."""
    settings = {"admission_wait_seconds": "0", "admission_events": "true"}
    start(kubeconfig=str(lab.kubeconfig), **settings)
    spec = LARGE | {"batch_size": 517}
    ran = create(lab, make_job("late", spec=spec))
    assert "no answer yet" in ran.stderr

    wait_until(lambda: "MemgateDoesNotFit" in find_events(lab, "late"), "its owner is told", 120)
    events = find_events(lab, "late")
    uid = lab.get("job", "late", NAMESPACE)["metadata"]["uid"]
    assert "MemgateNoAnswer" in events
    assert events["MemgateDoesNotFit"]["involvedObject"]["uid"] == uid
    assert "does not fit" in events["MemgateDoesNotFit"]["message"]

    def noted() -> list[str]:
        found = read_audit(valkey, decision="reject")
        return [one.done for one in found if one.name == "late"]

    wait_until(lambda: noted() == ["noted"], "it is in the audit")  # stored a moment after it


def test_a_refusal_leaves_an_event_and_one_figure(lab: Lab, start: Start) -> None:
    """The same size in the refusal, in the event and on the command line of every other door."""
    start(kubeconfig=str(lab.kubeconfig), admission_events="true")
    ran = create(lab, make_job("refused", spec=LARGE))
    assert ran.returncode != 0
    said = ran.stderr.partition("does not fit on t4: ")[2].partition(";")[0]
    assert said.startswith("needs ")
    wait_until(lambda: "MemgateRefused" in find_events(lab, "refused"), "there is an event")
    assert said in find_events(lab, "refused")["MemgateRefused"]["message"]


def test_the_example_of_the_page_is_refused(lab: Lab, start: Start) -> None:
    """As docs/kubernetes.md shows it to somebody who tries memgate for the first time."""
    start(kubeconfig=str(lab.kubeconfig), admission_events="true")
    (document,) = read_example("refused.yaml")
    ran = create(lab, document)
    assert ran.returncode != 0
    assert "does not fit on rtx-3060: needs 21.99 GiB, rtx-3060 has 11.65 GiB" in ran.stderr
    wait_until(lambda: "MemgateRefused" in find_events(lab, "too-large"), "there is an event")


def test_a_mistake_that_only_a_worker_finds_is_refused(lab: Lab, start: Start) -> None:
    """An optimizer that does not exist."""
    start()
    ran = create(lab, make_job("mistaken", spec=SPEC | {"optimizer": {"name": "Adamx"}}))
    assert ran.returncode != 0
    assert "Adamx" in ran.stderr


def test_a_typo_in_an_annotation_is_told(lab: Lab, start: Start) -> None:
    """As kubectl shows it; the job is let in, since nobody asked anything about it."""
    start()
    document = make_job("typo")
    document["metadata"]["annotations"] = {"memgate.dev/jobs": "{}"}
    ran = create(lab, document)
    assert ran.returncode == 0
    said = "Warning: memgate: the annotation memgate.dev/jobs has no effect: write memgate.dev/job"
    assert said in ran.stderr


def test_an_owner_cannot_lose_what_is_held(lab: Lab, start: Start) -> None:
    """Without its label the controller would never find it again."""
    with running_valkey() as idle:
        start(admission_wait_seconds="0", admission_on_timeout="hold", redis_url=idle)
        document = copy.deepcopy(read_example("jobset.yaml")[0])
        document["metadata"]["name"] = "kept"
        template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template["metadata"]["annotations"][JOB] = json.dumps(SPEC | {"batch_size": 61})
        assert create(lab, document).returncode == 0
        let_edit(lab, "owner")
        with lab.as_account("owner", NAMESPACE) as owner:
            remove = ("label", "jobset", "kept", f"--namespace={NAMESPACE}", "memgate.dev/held-")
            owner.kubectl(*remove, check=False)
    found = lab.get("jobset", "kept", NAMESPACE)
    assert found["metadata"]["labels"]["memgate.dev/held"] == "waiting"
    assert found["spec"]["suspend"] is True


def test_what_exists_already_is_reported(lab: Lab, valkey: str, tmp_path: Path) -> None:
    """In a PolicyReport, where the cluster has the kind, and in the audit."""
    group = ("wgpolicyk8s.io", "v1alpha2", "PolicyReport", "policyreports")
    lab.install_kind(*group, fields=FIELDS)
    team = lab.make_namespace("existing")
    large, plain = make_job("existing-large", spec=LARGE), make_job("existing-plain")
    del plain["metadata"]["annotations"]
    lab.kubectl("create", "-f-", f"--namespace={team}", given=[large, plain])

    def report() -> dict[str, Any]:
        ran = lab.kubectl(
            "get", "policyreports", "memgate", "-n", team, "--output=json", check=False
        )
        return dict(json.loads(ran.stdout)) if ran.returncode == 0 else {}

    excluded = f"kube-system,{NAMESPACE}"
    settings = {
        "admission_audit_seconds": "1",
        "admission_excluded_namespaces": excluded,
        "admission_mode": "warn",
    }
    with controlling(lab, valkey, tmp_path, **settings):
        wait_until(lambda: report().get("summary", {}).get("fail") == 1, "it is reported", 120)
        found = report()
        lab.kubectl("delete", "jobs", "--all", f"--namespace={team}", "--cascade=background")
        wait_until(lambda: report() == {}, "it is gone with its objects", 60)
    assert found["summary"] == {"pass": 0, "fail": 1, "warn": 0, "error": 0, "skip": 1}
    # what the kind does not have, an API server drops in silence
    assert set(found["results"][0]) == {
        *("source", "policy", "rule", "category", "result", "scored", "message"),
        *("timestamp", "properties", "resources"),
    }
    by_rule = {one["rule"]: one for one in found["results"]}
    assert by_rule["reject"]["resources"][0]["name"] == "existing-large"
    assert by_rule["undescribed"]["resources"][0]["name"] == "existing-plain"
    queue = QueueClient(QueueSettings(redis_url=valkey))
    recorded = {one.name: one for one in queue.audit.walk(namespace=team)}
    queue.close()
    assert recorded["existing-large"].decision == "reject"
    assert recorded["existing-large"].would == "refused"
