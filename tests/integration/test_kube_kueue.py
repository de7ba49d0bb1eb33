"""Kueue's admission checks at a real Kubernetes API server; the test does what Kueue would do."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from memgate_service.admission.core.rehearsal import RehearsalResult
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError
from memgate_service.admission.kueue.controller import Reply, write_reply
from tests.admission import SPEC
from tests.integration.kube_lab import Lab
from tests.integration.kube_shadows import Shadows
from tests.running import ROOT, running, serving, wait_until
from tests.valkey import running_valkey

pytestmark = pytest.mark.kubernetes

_EXAMPLES = ROOT / "deploy" / "examples" / "kueue"
_GROUP = ("kueue.x-k8s.io", "v1beta2")
_LARGE = {
    "model": {"source": "torchvision", "name": "resnet50"},
    "input": {"shape": [3, 224, 224]},
    "batch_size": 512,
}


@pytest.fixture(scope="module", autouse=True)
def queues(lab: Lab) -> None:
    """Have Kueue's kinds, and the objects of our example."""
    for kind, plural in (
        ("AdmissionCheck", "admissionchecks"),
        ("ResourceFlavor", "resourceflavors"),
        ("ClusterQueue", "clusterqueues"),
    ):
        lab.install_kind(*_GROUP, kind, plural, scope="Cluster", status=True)
    for kind, plural in (("LocalQueue", "localqueues"), ("Workload", "workloads")):
        lab.install_kind(*_GROUP, kind, plural, status=True)
    lab.make_namespace("memgate")
    for name in ("queue.yaml", "controller.yaml", "rehearsals.yaml"):
        lab.kubectl("apply", f"--filename={_EXAMPLES / name}")


@pytest.fixture
def valkey() -> Iterator[str]:
    """Start a Valkey server that nobody works for yet; return where it is."""
    with running_valkey() as url:
        yield url


Answer = Callable[..., None]


@pytest.fixture
def answer(lab: Lab, valkey: str, tmp_path: Path) -> Iterator[Answer]:
    """Run the API and the controller, with the rights that the example gives it."""
    with ExitStack() as stack:
        account = stack.enter_context(lab.as_account("memgate-kueue", "memgate"))

        def start(**settings: str) -> None:
            stack.enter_context(_answering(account, valkey, tmp_path, settings))

        yield start


@contextmanager
def _answering(lab: Lab, valkey: str, directory: Path, settings: dict[str, str]) -> Iterator[None]:
    environment = {"MEMGATE_KUBECONFIG": str(lab.kubeconfig)}
    environment |= {f"MEMGATE_{name.upper()}": value for name, value in settings.items()}
    with (
        serving(directory / "api.log", redis_url=valkey) as served,
        (directory / "controller.log").open("wb") as log,
    ):
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from memgate_service.cli.main import main; main()"),
                *("controller", "--kueue", "--interval", "0.3"),
            ],
            cwd=ROOT,
            env=environment | {"MEMGATE_URL": served.url},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(30) == 0


def _submit(
    lab: Lab,
    name: str,
    *,
    spec: dict[str, Any] | None = SPEC,
    flavor: str = "t4",
    conditions: tuple[str, ...] = ("QuotaReserved",),
    age_seconds: float = 0,
    program: list[str] | None = None,
) -> str:
    """Make a Workload of the example's Job, reserve quota for it; return since when it waits."""
    job = yaml.safe_load((_EXAMPLES / "job.yaml").read_text())
    template = copy.deepcopy(job["spec"]["template"])
    template["metadata"]["annotations"] = (
        {} if spec is None else {"memgate.dev/job": json.dumps(spec)}
    )
    if program is not None:
        template["spec"]["containers"][0]["command"] = program
    pods = {"name": "main", "count": 1, "template": template}
    lab.apply(
        {
            "apiVersion": "/".join(_GROUP),
            "kind": "Workload",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"active": True, "queueName": "research", "podSets": [pods]},
        }
    )
    begun = datetime.now(UTC) - timedelta(seconds=age_seconds)
    since = {"lastTransitionTime": begun.strftime("%Y-%m-%dT%H:%M:%SZ")}
    pending = {"state": "Pending", "message": "", **since}
    chosen = {"name": "main", "count": 1, "flavors": {"cpu": flavor, "nvidia.com/gpu": flavor}}
    status = {
        "admission": {"clusterQueue": "gpus", "podSetAssignments": [chosen]},
        "admissionChecks": [{"name": "another", **pending}, {"name": "memgate", **pending}],
        "conditions": [
            {"type": kind, "status": "True", "reason": "Test", "message": "", **since}
            for kind in conditions
        ],
    }
    patch = json.dumps({"status": status})
    command = ("patch", "workload", name, "--subresource=status", "--type=merge", "--patch", patch)
    lab.kubectl(*command)
    return since["lastTransitionTime"]


def _check(lab: Lab, name: str) -> dict[str, Any]:
    """Return what became of our check; the other one is never touched."""
    other, ours = lab.get("workload", name)["status"]["admissionChecks"]
    assert (other["name"], other["state"], other["message"]) == ("another", "Pending", "")
    assert isinstance(ours, dict)
    return ours


def _until(lab: Lab, name: str, state: str) -> str:
    wait_until(lambda: _check(lab, name)["state"] == state, f"{name} is {state}", 120)
    return str(_check(lab, name)["message"])


def test_a_job_is_checked_on_the_gpu_that_kueue_chose(
    lab: Lab, valkey: str, answer: Answer, tmp_path: Path
) -> None:
    """What fits is Ready; what does not is Rejected, with what would fit; the rest is let alone."""
    lab.kubectl("delete", "workloads", "--all")
    with running("memgate_worker", tmp_path / "worker.log", redis_url=valkey, advice_seconds="60"):
        _submit(lab, "fits")
        _submit(lab, "too-large", spec=_LARGE)
        _submit(lab, "large", spec=_LARGE, flavor="a100")
        _submit(lab, "wrong", spec={"nonsense": True})
        _submit(lab, "bare", spec=None)
        _submit(lab, "unreserved", conditions=())
        _submit(lab, "evicted", conditions=("QuotaReserved", "Evicted"))
        _submit(lab, "runs", spec=_LARGE, conditions=("QuotaReserved", "Admitted"))
        answer(admission_wait_seconds="30", admission_on_timeout="hold")

        assert "memgate: fits on " in _until(lab, "fits", "Ready")
        refusal = _until(lab, "too-large", "Rejected")
        assert "does not fit on " in refusal
        assert "t4 has 14.56 GiB" in refusal
        assert " fits, the largest that does" in refusal
        assert "as it is, it fits on " in refusal
        assert "a100-80 has" in _until(lab, "large", "Ready")
        assert "annotation memgate.dev/job: " in _until(lab, "wrong", "Rejected")
        assert "not checked" in _until(lab, "bare", "Ready")
        for name in ("unreserved", "evicted", "runs"):
            assert _check(lab, name)["state"] == "Pending"
            assert _check(lab, name)["message"] == ""
    (active,) = lab.get("admissioncheck", "memgate")["status"]["conditions"]
    assert (active["type"], active["status"]) == ("Active", "True")


@pytest.mark.parametrize(
    ("policy", "want"), [("admit", "Ready"), ("reject", "Retry"), ("hold", "Pending")]
)
def test_no_answer_in_time_is_the_operators_to_decide(
    lab: Lab, answer: Answer, policy: str, want: str
) -> None:
    """Let in, given back to the queue for a minute, or kept waiting; said why in each case."""
    lab.kubectl("delete", "workloads", "--all")
    answer(admission_on_timeout=policy)
    was = {"old": _submit(lab, "old", age_seconds=60), "new": _submit(lab, "new")}

    def are_told() -> bool:
        return all("no answer yet" in _check(lab, name)["message"] for name in was)

    wait_until(are_told, "both say that there is no answer")
    new, old = _check(lab, "new"), _check(lab, "old")
    assert (new["state"], new["lastTransitionTime"]) == ("Pending", was["new"])
    assert old["state"] == want
    assert old.get("requeueAfterSeconds") == (60 if want == "Retry" else None)
    assert (old["lastTransitionTime"] == was["old"]) == (want == "Pending")


@pytest.mark.parametrize(
    ("result", "want"),
    [
        (RehearsalResult(decision="reject", gpu="t4", why="needs 21 GiB"), "Rejected"),
        (RehearsalResult(decision="admit", gpu="t4", why="needs 2 GiB"), "Ready"),
        (None, "Ready"),
    ],
    ids=["does not fit", "fits", "fails"],
)
def test_a_check_waits_for_the_rehearsal_of_what_has_no_description(
    lab: Lab, answer: Answer, tmp_path: Path, result: RehearsalResult | None, want: str
) -> None:
    """On the GPU that Kueue chose, which the job does not name; a failure keeps nothing out."""
    lab.kubectl("delete", "workloads", "--all")
    shadows = Shadows(lab, "default")
    policy = tmp_path / "policy.json"
    policy.write_text('{"on": {"undescribed": "rehearse"}}')
    answer(admission_policy=str(policy), rehearsal_image="memgate-worker:1")
    _submit(lab, "plain", spec=None, program=["python", "train.py"])

    wait_until(lambda: "run once" in _check(lab, "plain")["message"], "it is said to wait")
    assert _check(lab, "plain")["state"] == "Pending"
    shadow = shadows.wait()
    assert "--gpu=t4" in shadow.spec.containers[0].command
    assert shadow.metadata.owner_references[0].kind == "Workload"
    shadows.end(shadow, result)

    said = _until(lab, "plain", want)
    assert (result.why if result else "a rehearsal cannot tell") in said
    wait_until(lambda: shadows.find() == [], "the shadow is gone", 60)
    shadows.take_part("disabled")
    wait_until(lambda: shadows.fences() == 0, "nothing is left behind", 60)


def test_where_nothing_is_enforced_a_check_waits_for_no_rehearsal(
    lab: Lab, answer: Answer, tmp_path: Path
) -> None:
    """It is answered at once, and no shadow is made in its place."""
    lab.kubectl("delete", "workloads", "--all")
    shadows = Shadows(lab, "default")
    policy = tmp_path / "policy.json"
    policy.write_text('{"mode": "warn", "on": {"undescribed": "rehearse"}}')
    answer(admission_policy=str(policy), rehearsal_image="memgate-worker:1")
    _submit(lab, "plain", spec=None, program=["python", "train.py"])
    assert "not checked" in _until(lab, "plain", "Ready")
    assert (shadows.find(), shadows.fences()) == ([], 0)
    shadows.take_part("disabled")


def test_an_answer_to_what_changed_meanwhile_is_not_taken(lab: Lab) -> None:
    """Kueue may be evicting it: then an answer would keep it out of the queue for ever."""
    lab.kubectl("delete", "workloads", "--all")
    _submit(lab, "evicted-now")
    seen = lab.get("workload", "evicted-now")
    lab.kubectl("label", "workload", "evicted-now", "changed=yes")
    cluster = Cluster.connect(lab.kubeconfig)
    workloads = cluster.find("Workload.kueue.x-k8s.io")
    assert workloads is not None

    patch = write_reply(seen, 1, Reply("Retry", "too late"), datetime.now(UTC))
    with pytest.raises(ClusterError):
        cluster.patch(workloads, seen, patch, "status")

    assert _check(lab, "evicted-now")["state"] == "Pending"
