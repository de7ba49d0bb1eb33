"""``on: {late: reject}``: what was let in without an answer is suspended if it does not fit."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memgate.client.errors import NotDoneError
from memgate.units import GIB
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.holding import follow, unfollow
from memgate_service.admission.kubernetes.late import LateController
from memgate_service.admission.kubernetes.objects import SHAPES
from memgate_service.admission.kubernetes.patches import patched
from memgate_service.admission.kubernetes.rounds import Done
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from tests.admission import T4, make_job, make_pod
from tests.unit.service.admission.test_background import FakeCluster, RecordingMemgate

_JOB = SHAPES["Job.batch"]


class PatchedCluster(FakeCluster):
    """Keeps objects, and changes them; a selector is looked at."""

    is_changed_meanwhile = False

    def list(self, resource: Resource, selector: str = "") -> list[Any]:
        """Return objects with a label."""
        name, _, value = selector.partition("=")
        found = super().list(resource)
        return [
            one for one in found if not name or one["metadata"].get("labels", {}).get(name) == value
        ]

    def patch(self, resource: Resource, document: Any, patch: Any) -> None:
        """Change an object."""
        if self.is_changed_meanwhile:
            raise ClusterError("the object has been modified", 409)
        (kept,) = self.objects[resource.plural]
        kept.update(patched(kept, patch))


def _followed(age_seconds: float = 10) -> dict[str, Any]:
    job = make_job(make_pod(nodeSelector=T4))
    made = datetime.now(UTC) - timedelta(seconds=age_seconds)
    job["metadata"] |= {"uid": "1", "creationTimestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return copy.deepcopy(dict(patched(job, follow(job, _JOB))))


def _round(
    cluster: PatchedCluster, memgate: RecordingMemgate, tmp_path: Path, **policy: Any
) -> Done:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"on": {"late": "reject"}} | policy))
    settings = AdmissionSettings(admission_policy=path)
    return LateController(cluster, memgate, settings).go_round()  # type: ignore[arg-type]


def test_only_what_can_be_suspended_is_followed() -> None:
    """Not a Deployment, not a pod, not what Kueue starts and stops."""
    job = make_job(make_pod())
    label = {"op": "add", "path": "/metadata/labels/memgate.dev~1late", "value": "waiting"}
    assert follow(job, _JOB)[-1] == label
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert follow(job, _JOB) == []
    assert follow(make_pod(), SHAPES["Pod"]) == []
    assert follow(make_job(make_pod()), SHAPES["Deployment.apps"]) == []
    assert unfollow(make_pod()) == []


def test_what_does_not_fit_is_suspended_and_told(tmp_path: Path) -> None:
    """It is held like anything else that was refused, and the audit has it."""
    cluster, memgate = PatchedCluster(jobs=[_followed()]), RecordingMemgate(64 * GIB)

    assert _round(cluster, memgate, tmp_path) == Done(num_refused=1)

    (job,) = cluster.objects["jobs"]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"] == {"memgate.dev/held": "rejected"}
    (event,) = cluster.events
    assert event.reason == "MemgateRefused"
    assert "is suspended now: does not fit on t4" in event.message
    (entry,) = memgate.recorded.values()
    assert (entry.decision, entry.done, entry.gpu) == ("reject", "held", "t4")


@pytest.mark.parametrize(
    ("pod_phase", "size_bytes", "policy"),
    [
        ("Running", 64 * GIB, {}),
        ("Pending", GIB, {}),
        ("Pending", 64 * GIB, {"mode": "warn"}),
        ("Pending", 64 * GIB, {"on": {"late": "admit"}}),
        ("Pending", 64 * GIB, {"on": {"late": "reject", "reject": "admit"}}),
    ],
    ids=["it runs", "it fits", "only warned", "policy changed", "nothing is refused"],
)
def test_everything_else_is_let_go(
    tmp_path: Path, pod_phase: str, size_bytes: int, policy: dict[str, Any]
) -> None:
    """The label is taken away, and nothing else is changed."""
    pod = {
        "metadata": {"uid": "2", "namespace": "team", "ownerReferences": [{"uid": "1"}]},
        "status": {"phase": pod_phase},
    }
    cluster = PatchedCluster(jobs=[_followed()], pods=[pod])

    assert _round(cluster, RecordingMemgate(size_bytes), tmp_path, **policy) == Done()

    (job,) = cluster.objects["jobs"]
    assert "suspend" not in job["spec"]
    assert job["metadata"]["labels"] == {}
    assert cluster.events == []


def test_an_answer_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    """For ten minutes; a change in the meantime is looked at in the next round."""
    memgate = RecordingMemgate(GIB)
    memgate.said = NotDoneError("0" * 32, 0)
    cluster = PatchedCluster(jobs=[_followed()])
    assert _round(cluster, memgate, tmp_path) == Done(num_waiting=1)
    cluster = PatchedCluster(jobs=[_followed(700)])
    cluster.is_changed_meanwhile = True
    assert _round(cluster, memgate, tmp_path) == Done(num_waiting=1)
    cluster.is_changed_meanwhile = False
    assert _round(cluster, memgate, tmp_path) == Done()
    assert cluster.objects["jobs"][0]["metadata"]["labels"] == {}


def test_a_wrong_description_stops_nothing(tmp_path: Path) -> None:
    """It is told by others; and an object without a time is as old as new."""
    job = _followed()
    job["metadata"]["annotations"] = {"memgate.dev/job": "nonsense"}
    del job["metadata"]["creationTimestamp"]
    cluster = PatchedCluster(jobs=[job])
    assert _round(cluster, RecordingMemgate(64 * GIB), tmp_path) == Done()
    assert "suspend" not in cluster.objects["jobs"][0]["spec"]
