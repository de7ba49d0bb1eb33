"""Which image a rehearsal ran, and what is left of one: nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from memgate_service.admission.core.rehearsal import RehearsalResult
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.objects import SHAPES, find_pods
from memgate_service.admission.kubernetes.rehearsals import Rehearsals
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from tests.unit.service.admission.test_rehearsals import (
    NOW,
    SETTINGS,
    FakeCluster,
    make_container,
    make_controller,
    make_train_job,
)

_TAGGED = "team/train:latest"
_RAN = "team/train@sha256:" + "b" * 64


def _ran(image_id: str = _RAN) -> dict[str, Any]:
    """Make a pod of somebody's that has run the image."""
    status = {"name": "train", "imageID": image_id}
    return {
        "metadata": {"name": "earlier", "namespace": "team"},
        "spec": {"containers": [{"name": "train", "image": _TAGGED}]},
        "status": {"startTime": "2026-05-01T10:00:00Z", "containerStatuses": [status]},
    }


def _image(cluster: FakeCluster) -> str:
    (shadow,) = (pod for name, pod in cluster.pods.items() if name != "earlier")
    return str(shadow["spec"]["containers"][0]["image"])


def test_an_image_that_has_run_here_is_run_by_its_digest() -> None:
    """A tag may mean another image by now."""
    cluster = FakeCluster(make_train_job(make_container(image=_TAGGED)))
    cluster.pods["earlier"] = _ran()
    make_controller(cluster)[0].go_round()
    assert _image(cluster) == _RAN


@pytest.mark.parametrize(
    ("image_id", "want"),
    [
        (_RAN, f"{_TAGGED} was sha256:{'b' * 64} then"),
        ("", f"{_TAGGED} by its tag, whatever that meant then"),
    ],
    ids=["the shadow says it", "nobody says it"],
)
def test_an_image_known_by_its_tag_alone_is_said_to_be(image_id: str, want: str) -> None:
    """What was measured was that image; the result is kept for an hour, no longer."""
    cluster = FakeCluster(make_train_job(make_container(image=_TAGGED)))
    controller, _ = make_controller(cluster)
    controller.go_round()
    assert _image(cluster) == _TAGGED
    cluster.end(RehearsalResult(decision="admit", why="fits"))
    (shadow,) = cluster.pods.values()
    shadow["status"]["containerStatuses"][0] |= {"name": "rehearsal", "imageID": image_id}
    controller.go_round()
    assert cluster.events[0].message == f"rehearsed without a GPU: fits (the image: {want})"
    assert controller.go_round().num_released == 1  # the same again: it is known
    fresh = make_train_job(make_container(image=_TAGGED))
    fresh["metadata"]["creationTimestamp"] = "2026-05-01T13:30:00Z"
    cluster.jobs = [fresh]
    controller._rehearsals._now = lambda: NOW + timedelta(hours=1, minutes=31)
    assert controller.go_round().num_waiting == 1


def test_a_shadow_that_never_runs_is_not_tried_again_and_again() -> None:
    """Beside a job nothing is held, and no timer ends it."""
    cluster = FakeCluster()
    rehearsals = Rehearsals(cluster, SETTINGS, lambda: NOW)  # type: ignore[arg-type]
    pods = find_pods(make_train_job(), SHAPES["Job.batch"])
    rehearsals.start_round()
    assert rehearsals.look_at(make_train_job(), pods, since=NOW).result is None
    assert len(cluster.pods) == 1
    later = NOW + timedelta(seconds=400)
    rehearsals._now = lambda: later
    rehearsals.start_round()
    assert cluster.pods == {}
    result = rehearsals.look_at(make_train_job(), pods, since=later).result
    assert result is not None
    assert "no result in time" in result.message
    assert cluster.pods == {}


class FencedCluster(FakeCluster):
    """Has what fenced shadows in."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__(*jobs)
        self.fences = {"team", "left"}
        self.removed: list[tuple[str, str]] = []
        self.is_refused = False

    def list(self, resource: Resource, selector: str = "", namespace: str = "") -> list[Any]:
        """Return the fences as well."""
        if resource.plural not in ("networkpolicies", "resourcequotas"):
            return super().list(resource, selector, namespace)
        if self.is_refused:
            raise ClusterError("not allowed", 403)
        assert selector
        named = {"name": "memgate-rehearsals"}
        return [{"metadata": {**named, "namespace": one}} for one in sorted(self.fences)]

    def delete(self, resource: Resource, name: str, namespace: str) -> None:
        """Remove one of them."""
        if resource.plural == "pods":
            super().delete(resource, name, namespace)
        else:
            self.removed.append((resource.plural, namespace))


def test_the_fence_goes_when_a_namespace_no_longer_takes_part() -> None:
    """Not before its shadows: until then it keeps them from the network."""
    cluster = FencedCluster()
    metadata = {"name": "x", "namespace": "left", "labels": {"memgate.dev/rehearsal": "true"}}
    cluster.pods["x"] = {"metadata": metadata | {"creationTimestamp": "2026-05-01T11:59:00Z"}}
    rehearsals = Rehearsals(cluster, SETTINGS, lambda: NOW)  # type: ignore[arg-type]
    rehearsals.start_round()
    assert cluster.removed == []
    cluster.pods.clear()
    rehearsals.start_round()
    assert cluster.removed == [("networkpolicies", "left"), ("resourcequotas", "left")]
    cluster.is_refused = True  # it is tried again in the next round
    rehearsals.start_round()


def test_what_waits_is_released_where_rehearsals_were_turned_off() -> None:
    """Nothing is held without somebody who releases it."""
    cluster = FakeCluster(make_train_job())
    controller, _ = make_controller(cluster)
    controller._rehearsals = Rehearsals(cluster, AdmissionSettings(), lambda: NOW)  # type: ignore[arg-type]
    assert controller.go_round().num_released == 1
    assert "rehearsals are not set up" in cluster.events[0].message
    assert controller.every_seconds == 0
    controller._settings = AdmissionSettings()
    assert controller.every_seconds == 30
