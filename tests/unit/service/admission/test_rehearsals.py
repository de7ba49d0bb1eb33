"""Jobs without a description on Kubernetes: the shadow pod, and what its result leads to."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import kubernetes_validate
import pytest

from memgate_service.admission.core.rehearsal import RehearsalResult, read_result, write_result
from memgate_service.admission.kubernetes.cluster import ClusterError, ObjectEvent, Resource
from memgate_service.admission.kubernetes.objects import SHAPES, find_pods
from memgate_service.admission.kubernetes.rehearsals import Rehearsals, find_result
from memgate_service.admission.kubernetes.rehearsing import RehearsalController
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.admission.kubernetes.shadow_pod import (
    NotRehearsedError,
    Shadow,
    make_fence,
    make_shadow,
)
from tests.admission import T4
from tests.pod_security import find_violations

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SETTINGS = AdmissionSettings(rehearsal_image="registry.example.com/memgate-worker:1")
_SECRET = {"secretKeyRef": {"name": "wandb", "key": "token"}}


def make_container(**changes: Any) -> dict[str, Any]:
    """Make a container that trains."""
    container = {
        "name": "train",
        "image": "team/train@sha256:" + "a" * 64,
        "command": ["python", "train.py"],
        "args": ["--batch-size", "64"],
        "workingDir": "/job",
        "env": [
            {"name": "DATA", "value": "/data"},
            {"name": "WANDB_API_KEY", "valueFrom": _SECRET},
            {"name": "HOME", "value": "/root"},
        ],
        "envFrom": [{"secretRef": {"name": "all"}}, {"configMapRef": {"name": "settings"}}],
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi", "rdma/hca": 1}},
        "securityContext": {"privileged": True},
        "ports": [{"containerPort": 80, "hostPort": 80}],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "own", "mountPath": "/own", "subPath": "x"},
            {"name": "host", "mountPath": "/host"},
            {"name": "keys", "mountPath": "/keys"},
            {"name": "config", "mountPath": "/config"},
        ],
        "livenessProbe": {"exec": {"command": ["true"]}},
    }
    return container | changes


def make_train_job(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Make a Job that does all that a shadow must not."""
    pod = {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "serviceAccountName": "powerful",
        "nodeSelector": T4,
        "tolerations": [{"operator": "Exists"}],
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "login"}],
        "initContainers": [{"name": "fetch", "image": "curl"}],
        "containers": list(containers) or [make_container(), {"name": "sidecar", "image": "proxy"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}},
            {"name": "own", "persistentVolumeClaim": {"claimName": "single"}},
            {"name": "host", "hostPath": {"path": "/"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "config", "configMap": {"name": "config"}},
        ],
        **spec,
    }
    labels = {"memgate.dev/held": "rehearsal"}
    metadata = {"name": "train", "namespace": "team", "uid": "1234", "labels": labels}
    metadata["creationTimestamp"] = "2026-05-01T11:59:00Z"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": True,
            "template": {"metadata": {"labels": {"app": "train"}}, "spec": pod},
        },
    }


_CLAIMS = {"shared": ["ReadWriteMany"], "single": ["ReadWriteOnce"]}


def _shadow(document: dict[str, Any]) -> Shadow:
    (pod,) = find_pods(document, SHAPES["Job.batch"])
    return make_shadow(document, pod, SETTINGS, _CLAIMS)


@pytest.mark.parametrize("version", ["1.28.0", "1.37.0"])
def test_a_shadow_is_a_pod_that_every_cluster_takes(version: str) -> None:
    """Checked strictly against Kubernetes' own schemas; so is what fences it in."""
    for document in (_shadow(make_train_job()).pod, *make_fence("team")):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_shadow_keeps_to_the_restricted_standard() -> None:
    """Whatever the pod itself does; and the checker finds what the pod does."""
    assert find_violations(_shadow(make_train_job()).pod["spec"]) == []
    own = find_violations(make_train_job()["spec"]["template"]["spec"])
    assert {"hostNetwork", "volume hostPath", "train: privileged", "train: hostPort"} <= set(own)


def test_a_shadow_runs_the_same_program_without_a_gpu() -> None:
    """The image by its digest, the command, its arguments, its directory, its settings."""
    shadow = _shadow(make_train_job())
    spec = shadow.pod["spec"]
    (container,) = spec["containers"]

    assert container["image"] == make_container()["image"]
    assert container["command"][-4:] == ["python", "train.py", "--batch-size", "64"]
    assert container["command"][:3] == ["/memgate/pack/bin/memgate", "rehearse", "--gpu=t4"]
    assert container["workingDir"] == "/job"
    assert "nvidia.com/gpu" not in json.dumps(spec)
    assert "rdma/hca" not in json.dumps(spec)
    assert [one["name"] for one in spec["initContainers"]] == ["memgate"]
    assert spec["initContainers"][0]["image"] == SETTINGS.rehearsal_image
    assert spec["imagePullSecrets"] == [{"name": "login"}]
    for gone in ("tolerations", "runtimeClassName", "hostNetwork", "serviceAccountName"):
        assert gone not in spec
    assert shadow.gpu == "t4"


def test_a_shadow_can_do_no_harm() -> None:
    """No token, no secrets, no labels that others select, a deadline, a priority of its own."""
    pod = _shadow(make_train_job()).pod
    spec = pod["spec"]
    (container,) = spec["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    mounts = {one["name"]: one for one in container["volumeMounts"]}

    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] == 300
    assert (spec["priorityClassName"], spec["preemptionPolicy"]) == ("memgate-rehearsals", "Never")
    assert env["WANDB_API_KEY"] == "memgate-rehearsal"
    assert env["HOME"] == "/memgate/home"
    assert env["DATA"] == "/data"
    assert container["envFrom"] == [{"configMapRef": {"name": "settings"}}]
    assert "secretKeyRef" not in json.dumps(pod)
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "shared", "readOnly": True}
    assert mounts["data"]["readOnly"] is True
    assert mounts["config"]["readOnly"] is True
    for name in ("own", "host", "keys"):
        assert set(volumes[name]) == {"name", "emptyDir"}
    assert set(pod["metadata"]["labels"]) == {
        "memgate.dev/rehearsal",
        "app.kubernetes.io/managed-by",
    }
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "1234", False)


@pytest.mark.parametrize(
    ("document", "want"),
    [
        (make_train_job(make_container(command=[])), "its command is the image's own"),
        (
            make_train_job(make_container(), make_container(name="second")),
            "2 of its containers ask for a GPU",
        ),
        (make_train_job(nodeSelector={}), "not known which GPU"),
        (
            make_train_job(
                make_container(
                    resources={"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}}
                )
            ),
            "a part of a GPU",
        ),
    ],
    ids=["no command", "two containers", "no GPU named", "a part"],
)
def test_what_cannot_be_run_like_that_is_not_rehearsed(document: Any, want: str) -> None:
    """And the reason is said."""
    with pytest.raises(NotRehearsedError, match=want):
        _shadow(document)


def test_the_same_program_has_the_same_shadow() -> None:
    """Its hash is looked at again before anything is released."""
    first, again = _shadow(make_train_job()), _shadow(make_train_job())
    other = _shadow(make_train_job(make_container(args=["--batch-size", "65"])))

    assert first.key == again.key != other.key


@pytest.mark.parametrize(
    ("text", "want_known", "want_refused"),
    [
        (write_result(RehearsalResult(decision="reject", why="needs 21 GiB")).decode(), True, True),
        (write_result(RehearsalResult(decision="admit", why="fits")).decode(), True, False),
        (write_result(RehearsalResult(decision="uncertain")).decode(), False, False),
        (write_result(RehearsalResult(why="no step was seen")).decode(), False, False),
        ("Traceback: no such module", False, False),
        ('{"decision": 7}', False, False),
        ("", False, False),
    ],
)
def test_only_a_measured_job_is_refused(text: str, want_known: bool, want_refused: bool) -> None:
    """Anything else says that a rehearsal cannot tell."""
    result = read_result(text)

    assert (result.is_known, result.is_refused) == (want_known, want_refused)
    assert ("cannot tell" in result.message) is not want_known


def test_a_result_fits_into_the_status_of_a_pod() -> None:
    """Four kilobytes, whatever is in it."""
    long = RehearsalResult(decision="reject", why="\u20ac" * 9000, codes=["C" * 60] * 100)
    assert len(write_result(long)) <= 4096
    assert read_result(write_result(long).decode()).is_refused


class FakeCluster:
    """An API server without anybody who runs pods: the test plays that."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = [copy.deepcopy(one) for one in jobs]
        self.pods: dict[str, Any] = {}
        self.made: list[str] = []
        self.events: list[ObjectEvent] = []
        self.patches: list[Any] = []
        self.refuses: dict[str, str] = {}
        self.namespaces = ["team"]

    def forget_kinds(self) -> None:
        """Look at kinds again."""

    def find(self, kind: str) -> Resource | None:
        """Know Jobs."""
        return Resource("batch/v1", "jobs") if kind == "Job.batch" else None

    def list(self, resource: Resource, selector: str = "", namespace: str = "") -> list[Any]:
        """Return what is there."""
        if resource.plural == "jobs":
            return self.jobs
        if resource.plural == "namespaces":
            return [{"metadata": {"name": name}} for name in self.namespaces]
        if resource.plural == "persistentvolumeclaims":
            return [
                {"metadata": {"name": name}, "spec": {"accessModes": modes}}
                for name, modes in _CLAIMS.items()
            ]
        found = list(self.pods.values())
        return [one for one in found if not selector or "labels" in one["metadata"]]

    def apply(self, resource: Resource, document: Any) -> None:
        """Note what is made, in its order."""
        self._check(resource)
        self.made.append(document["kind"])

    def create(self, resource: Resource, document: Any) -> Any:
        """Make a pod."""
        self._check(resource)
        self.made.append(document["kind"])
        document["metadata"]["creationTimestamp"] = "2026-05-01T11:59:30Z"
        self.pods[document["metadata"]["name"]] = document
        return document

    def _check(self, resource: Resource) -> None:
        if resource.plural in self.refuses:
            raise ClusterError(self.refuses[resource.plural], 403)

    def delete(self, resource: Resource, name: str, namespace: str) -> None:
        """Remove a pod."""
        del self.pods[name]

    def patch(self, resource: Resource, document: Any, patch: Any) -> None:
        """Note what is changed."""
        self.patches.append(patch)

    def record_event(self, event: ObjectEvent) -> None:
        """Note an event."""
        self.events.append(event)

    def end(self, result: RehearsalResult | None, phase: str = "Succeeded") -> None:
        """Play that the shadow has ended."""
        (pod,) = self.pods.values()
        ended = {"message": write_result(result).decode()} if result else {}
        status = {"state": {"terminated": ended}}
        pod["status"] = {"phase": phase, "containerStatuses": [status]}


class FakeMemgate:
    """Takes records for the audit."""

    def __init__(self) -> None:
        self.recorded: list[Any] = []

    def record_decisions(self, entries: list[Any]) -> None:
        """Keep them."""
        self.recorded += entries


def make_controller(
    cluster: FakeCluster, now: datetime = NOW, **on: str
) -> tuple[Any, FakeMemgate]:
    """Make the controller where the policy says that jobs are rehearsed."""
    memgate = FakeMemgate()
    controller = RehearsalController(cluster, memgate, SETTINGS)  # type: ignore[arg-type]
    controller._rehearsals = Rehearsals(cluster, SETTINGS, lambda: now)  # type: ignore[arg-type]
    document = json.dumps({"on": {"undescribed": "rehearse"} | on}).encode()
    controller._policies = _Policies(document)  # type: ignore[assignment]
    return controller, memgate


class _Policies:
    """A policy that says so."""

    def __init__(self, text: bytes) -> None:
        from memgate_service.admission.core.layers import PolicyLayers
        from memgate_service.admission.core.rules import parse_policy

        self._layers = PolicyLayers(base=parse_policy(text))

    def refresh(self, *, is_due: bool = True) -> None:
        """Nothing changes."""

    def read(self) -> Any:
        """Return it."""
        return self._layers


@pytest.mark.parametrize(
    ("result", "want_reason", "want_value"),
    [
        (RehearsalResult(decision="reject", why="needs 21 GiB"), "MemgateRefused", "rejected"),
        (RehearsalResult(decision="admit", why="fits"), "MemgateReleased", None),
        (RehearsalResult(why="no step was seen"), "MemgateReleased", None),
        (None, "MemgateReleased", None),
    ],
    ids=["does not fit", "fits", "cannot tell", "failed"],
)
def test_the_result_decides(
    result: RehearsalResult | None, want_reason: str, want_value: str | None
) -> None:
    """The network is closed first, one shadow runs, nothing is left behind, all is recorded."""
    cluster = FakeCluster(make_train_job())
    controller, memgate = make_controller(cluster)

    assert controller.go_round().num_waiting == 1
    assert cluster.made == ["NetworkPolicy", "ResourceQuota", "Pod"]
    assert controller.go_round().num_waiting == 1  # it runs
    cluster.end(result, "Succeeded" if result else "Failed")
    controller.go_round()

    assert cluster.pods == {}
    assert [event.reason for event in cluster.events] == [want_reason]
    (patch,) = cluster.patches
    values = [step.get("value") for step in patch if "held" in step["path"]]
    assert values == [want_value]
    (entry,) = memgate.recorded
    assert entry.done == ("refused" if want_value else "released")


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"namespaces": []}, "does not have the label"),
        ({"refuses": {"networkpolicies": "forbidden"}}, "forbidden"),
        ({"refuses": {"pods": "pods is forbidden"}}, "pods is forbidden"),
    ],
    ids=["not opted in", "no fence", "no pod"],
)
def test_what_is_not_rehearsed_is_released_at_once(change: dict[str, Any], want: str) -> None:
    """Its owner is told why."""
    cluster = FakeCluster(make_train_job())
    for name, value in change.items():
        setattr(cluster, name, value)
    controller, _ = make_controller(cluster)

    assert controller.go_round().num_released == 1
    assert cluster.pods == {}
    assert want in cluster.events[0].message


def test_nothing_is_held_without_a_timer() -> None:
    """A quota that is never counted, a shadow that never ends: then it is released."""
    cluster = FakeCluster(make_train_job())
    cluster.refuses = {"pods": "status unknown for quota: memgate-rehearsals"}
    early, _ = make_controller(cluster)
    assert early.go_round().num_waiting == 1
    late, _ = make_controller(cluster, NOW + timedelta(seconds=400))
    assert late.go_round().num_released == 1
    assert "no result in time" in cluster.events[0].message

    cluster = FakeCluster(make_train_job())
    controller, _ = make_controller(cluster)
    controller.go_round()
    late, _ = make_controller(cluster, NOW + timedelta(seconds=400))
    assert late.go_round().num_released == 1
    assert cluster.pods == {}


def test_an_owner_may_opt_out_and_a_namespace_runs_one_at_a_time() -> None:
    """Others wait for their turn; a known program is not run twice."""
    skipped = make_train_job()
    skipped["metadata"]["annotations"] = {"memgate.dev/rehearsal": "skip"}
    second = make_train_job(make_container(args=["other"]))
    cluster = FakeCluster(skipped, make_train_job(), second, make_train_job())
    controller, _ = make_controller(cluster)

    done = controller.go_round()

    assert (done.num_released, done.num_waiting) == (1, 3)
    assert len(cluster.pods) == 1
    cluster.end(RehearsalResult(decision="admit", why="fits"))
    cluster.jobs = [make_train_job(), second, make_train_job()]
    done = controller.go_round()
    assert (done.num_released, done.num_waiting) == (2, 1)
    assert len(cluster.pods) == 1


def test_a_pod_that_failed_says_why() -> None:
    """The deadline, an image that cannot be pulled."""
    failed = {"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}
    result = find_result(failed)
    assert result is not None
    assert "DeadlineExceeded" in result.message
    assert find_result({"status": {"phase": "Running"}}) is None
