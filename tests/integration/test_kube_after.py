"""After a job was let in: stopped if it does not fit; told what it took. At a real API server."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kube

from memgate.units import GIB
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.settings import QueueSettings
from tests.admission import JOB, SPEC
from tests.integration.kube_gate import (
    LARGE,
    NAMESPACE,
    controlling,
    create,
    find_events,
    forget_webhooks,
    gating,
    make_job,
    read_audit,
)
from tests.integration.kube_lab import Lab
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


@pytest.fixture(autouse=True)
def namespace(lab: Lab) -> None:
    """Have the kinds of others' controllers, and the namespace that the webhooks look at."""
    for kind in KINDS:
        lab.install_kind(*kind)
    lab.make_namespace(NAMESPACE, webhook="yes")


def _jobset(name: str, batch_size: int) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(read_example("jobset.yaml")[0])
    document["metadata"]["name"] = name
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["metadata"]["annotations"][JOB] = json.dumps(LARGE | {"batch_size": batch_size})
    template["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "Tesla-T4"}
    return document


def _run_pod_of(lab: Lab, owner: dict[str, Any]) -> None:
    """Do what JobSet's and Job's controllers and a kubelet would: a pod of it runs."""
    name = f"{owner['metadata']['name']}-0"
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "ownerReferences": [reference]},
        "spec": {"containers": [{"name": "train", "image": "i"}]},
    }
    lab.kubectl("create", "-f-", f"--namespace={NAMESPACE}", given=[pod])
    body = {"status": {"phase": "Running"}}
    kube.CoreV1Api(lab.client).patch_namespaced_pod_status(name, NAMESPACE, body)


def test_what_does_not_fit_after_all_is_suspended_unless_it_runs(
    lab: Lab, valkey: str, tmp_path: Path
) -> None:
    """``on: {late: reject}``; the one that runs already is left running, and its owner is told."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"on": {"late": "reject"}}')
    settings: dict[str, Any] = {"admission_policy": str(policy), "admission_events": "true"}
    settings |= {"kubeconfig": str(lab.kubeconfig)}
    with ExitStack() as stack:
        stack.enter_context(gating(lab, valkey, tmp_path, admission_wait_seconds="0", **settings))
        for name, batch_size in (("late-waits", 601), ("late-runs", 602)):
            ran = create(lab, _jobset(name, batch_size))
            assert "no answer yet" in ran.stderr
            found = lab.get("jobset", name, NAMESPACE)
            assert found["metadata"]["labels"] == {"memgate.dev/late": "waiting"}
        _run_pod_of(lab, lab.get("jobset", "late-runs", NAMESPACE))
        stack.enter_context(controlling(lab, valkey, tmp_path, **settings))

        def state(name: str) -> tuple[Any, Any]:
            found = lab.get("jobset", name, NAMESPACE)
            return found["metadata"].get("labels"), found["spec"].get("suspend")

        held = {"memgate.dev/held": "rejected"}
        wait_until(lambda: state("late-waits") == (held, True), "it is suspended", 120)
        wait_until(lambda: not state("late-runs")[0], "the other one is looked at", 120)
        assert state("late-runs")[1] is None
        wait_until(lambda: "MemgateDoesNotFit" in find_events(lab, "late-runs"), "is told", 60)
    forget_webhooks(lab)
    message = find_events(lab, "late-waits")["MemgateRefused"]["message"]
    assert "is suspended now: " in message
    assert "does not fit on t4" in message
    done = {(one.name, one.done) for one in read_audit(valkey, decision="reject")}
    assert ("late-waits", "held") in done
    assert ("late-runs", "held") not in done


def _complete(lab: Lab, name: str, kind: str) -> None:
    """Do what the Job controller would: the job has ended."""
    condition = {"type": kind, "status": "True", "lastTransitionTime": _now()}
    patch = json.dumps({"status": {"conditions": [condition]}})
    where = ("job", name, f"--namespace={NAMESPACE}", "--subresource=status")
    lab.kubectl("patch", *where, "--type=merge", "--patch", patch)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_an_owner_is_told_what_a_job_took(lab: Lab, valkey: str, tmp_path: Path) -> None:
    """Measured, not measured, failed: one event each, and one outcome."""
    used = {"used": "Complete", "unknown": "Complete", "broken": "Failed"}
    with ExitStack() as stack:
        stack.enter_context(gating(lab, valkey, tmp_path))
        for name in used:
            create(lab, make_job(name, spec=SPEC))
        settings = {"admission_audit_seconds": "1", "admission_gpus": "t4,rtx-3060"}
        stack.enter_context(controlling(lab, valkey, tmp_path, **settings))
        for name in ("used", "broken"):
            amount = f"memgate.dev/used-bytes={2 * GIB}"
            lab.kubectl("annotate", "job", name, amount, f"--namespace={NAMESPACE}")
        for name, kind in used.items():
            _complete(lab, name, kind)

        def are_told() -> bool:
            return all("MemgateUsed" in find_events(lab, name) for name in used)

        wait_until(are_told, "their owners are told", 120)
    forget_webhooks(lab)
    said = {name: find_events(lab, name)["MemgateUsed"]["message"] for name in used}
    assert said["used"].startswith("asked for t4 (14.56 GiB), predicted ")
    assert said["used"].endswith(", used 2.00 GiB; rtx-3060 would have sufficed")
    assert "used not measured; rtx-3060 would have sufficed, by the prediction" in said["unknown"]
    assert said["broken"].startswith("it failed, perhaps before its peak; asked for t4")
    queue = QueueClient(QueueSettings(redis_url=valkey))
    outcomes = queue.outcomes()
    queue.close()
    assert [one.measured_peak_bytes for one in outcomes] == [2 * GIB]
