"""What the controller does with what is held; the API server and memgate are stood in for.

A real API server is in tests/integration/test_kube_admission.py; the one to be had is older than
scheduling gates, so how pods are released is tried here.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from memgate.client.conversation import ServedEstimate
from memgate.client.errors import AnswerError, NotDoneError
from memgate.contract import Work, WorkKind
from memgate.units import GIB
from memgate_service.admission.core.settings import AdmissionSettings
from memgate_service.admission.kubernetes.cluster import ClusterError, Resource
from memgate_service.admission.kubernetes.controller import Controller
from memgate_service.admission.kubernetes.holding import hold
from memgate_service.admission.kubernetes.objects import SHAPES
from memgate_service.admission.kubernetes.patches import patched
from memgate_service.admission.kubernetes.rounds import Done
from tests.admission import SPEC, T4, answer_work, make_estimate, make_job, make_pod

_KINDS = {"Pod": Resource("v1", "pods"), "Job.batch": Resource("batch/v1", "jobs")}


class FakeCluster:
    """Keeps objects; refuses to patch if told to."""

    def __init__(self, **held: Any) -> None:
        self.held = held
        self.patches: list[tuple[str, Any]] = []
        self.told: list[tuple[str, str]] = []
        self.refuses = False
        self.config_maps: dict[str, dict[str, str]] = {}

    def forget(self) -> None:
        """Look at kinds again."""

    def find(self, kind: str) -> Resource | None:
        """Know pods and Jobs."""
        return _KINDS.get(kind)

    def list(self, resource: Resource, selector: str) -> list[Any]:
        """Return what is held."""
        assert selector == "memgate.dev/held=waiting"
        return list(self.held.get(resource.plural, []))

    def patch(self, resource: Resource, document: Any, patch: Any) -> None:
        """Note a patch."""
        if self.refuses:
            raise ClusterError("no", 409)
        self.patches.append((resource.plural, patch))

    def tell(self, resource: Any, kind: str, document: Any, reason: str, message: str) -> None:
        """Note an event."""
        self.told.append((reason, message))

    def read_config_map(self, namespace: str, name: str) -> dict[str, str]:
        """Return a ConfigMap."""
        return self.config_maps[f"{namespace}/{name}"]


class FakeMemgate:
    """Says what it is told to."""

    def __init__(self, said: Any) -> None:
        self.said = said
        self.num_batches = 0

    def estimate(self, job: Any, gpu: Any, *, wait: float) -> Any:
        """Answer at once, or not."""
        assert wait == 0
        if isinstance(self.said, Exception):
            raise self.said
        return ServedEstimate(**(make_estimate(self.said).model_dump() | {"id": "0" * 32}))

    def max_batch(self, job: Any, gpu: Any, *, wait: float) -> Any:
        """Answer the first who asks, and no other."""
        assert wait > 0
        self.num_batches += 1
        if self.num_batches > 1:
            raise NotDoneError("0" * 32, wait)
        work = Work(kind=WorkKind.MAX_BATCH, job=job, gpu=gpu)
        return answer_work(work, self.said)


def _held(document: dict[str, Any], kind: str) -> dict[str, Any]:
    shape = SHAPES[kind]
    return dict(patched(document, hold(document, shape)))


def _round(cluster: FakeCluster, said: Any, **settings: Any) -> Done:
    controller = Controller(
        cluster,  # type: ignore[arg-type]
        FakeMemgate(said),  # type: ignore[arg-type]
        AdmissionSettings(**settings),
    )
    return controller.go_round()


def _cluster() -> FakeCluster:
    pod = _held(make_pod(nodeSelector=T4, schedulingGates=[{"name": "other"}]), "Pod")
    job = _held(make_job(make_pod(nodeSelector=T4)), "Job.batch")
    return FakeCluster(pods=[pod], jobs=[job])


def test_what_fits_is_released() -> None:
    """Only our gate is taken away, and only if it is still there; a Job goes on."""
    cluster = _cluster()

    assert _round(cluster, GIB) == Done(num_released=2)

    gate = "/spec/schedulingGates/1"
    label = {"op": "remove", "path": "/metadata/labels/memgate.dev~1held"}
    assert cluster.patches == [
        (
            "pods",
            [
                {"op": "test", "path": f"{gate}/name", "value": "memgate.dev/estimate"},
                {"op": "remove", "path": gate},
                label,
            ],
        ),
        ("jobs", [{"op": "replace", "path": "/spec/suspend", "value": False}, label]),
    ]
    assert {reason for reason, _ in cluster.told} == {"MemgateReleased"}


def test_what_does_not_fit_stays_held() -> None:
    """It is marked, so that it is not asked about for ever, and people are told why."""
    cluster = _cluster()

    assert _round(cluster, 40 * GIB) == Done(num_refused=2)

    marked = [{"op": "add", "path": "/metadata/labels/memgate.dev~1held", "value": "rejected"}]
    assert [patch for _, patch in cluster.patches] == [marked, marked]
    assert all("does not fit" in message for _, message in cluster.told)
    batches = ["Largest batch that fits: 16 (now 64)." in message for _, message in cluster.told]
    assert batches == [True, False]  # advice: nobody waits for it for long


@pytest.mark.parametrize(
    "said",
    [
        NotDoneError("0" * 32, 0),
        AnswerError("busy", code="QUEUE_FULL", status=429),
        AnswerError("who are you?", code="NO_KEY", status=401),
    ],
)
def test_without_an_answer_everything_waits(said: Exception) -> None:
    """Nothing is changed, and nobody is told."""
    cluster = _cluster()
    assert _round(cluster, said, admission_on_timeout="admit") == Done(num_waiting=2)
    assert (cluster.patches, cluster.told) == ([], [])


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("admit", Done(num_released=2)),
        ("reject", Done(num_refused=2)),
        ("hold", Done(num_refused=2)),
    ],
)
def test_what_nobody_can_say_is_the_operators_to_decide(policy: str, want: Done) -> None:
    """A job that cannot be run counts as uncertain."""
    failed = AnswerError("no such layer", code="JOB_FAILED", status=422)
    assert _round(_cluster(), failed, admission_on_uncertain=policy) == want


def test_an_object_that_changed_meanwhile_is_looked_at_again() -> None:
    """The next round sees it as it is then."""
    cluster = _cluster()
    cluster.refuses = True
    assert _round(cluster, GIB) == Done(num_waiting=2)
    assert cluster.told == []


def test_what_somebody_released_loses_its_label() -> None:
    """Only that: it runs already."""
    job = _held(make_job(make_pod(nodeSelector=T4)), "Job.batch")
    job["spec"] = job["spec"] | {"suspend": False}
    cluster = FakeCluster(jobs=[job])
    assert _round(cluster, 40 * GIB) == Done(num_released=1)
    assert cluster.patches == [
        ("jobs", [{"op": "remove", "path": "/metadata/labels/memgate.dev~1held"}])
    ]


def test_a_spec_may_stand_in_a_config_map() -> None:
    """And one that is wrong is refused, with the reason."""
    document = make_pod(nodeSelector=T4, annotations={"memgate.dev/job-configmap": "jobs/mine"})
    cluster = FakeCluster(pods=[_held(document, "Pod")])
    cluster.config_maps["team/jobs"] = {"mine": str(SPEC)}
    assert _round(copy.deepcopy(cluster), GIB) == Done(num_released=1)

    cluster.config_maps["team/jobs"] = {}
    assert _round(cluster, GIB) == Done(num_refused=1)
    assert "annotation memgate.dev/job-configmap" in cluster.told[0][1]


def test_a_cluster_that_is_away_is_asked_again() -> None:
    """The program goes on until it is told to stop."""
    cluster = _cluster()
    rounds = iter([True, False])
    controller = Controller(
        cluster,  # type: ignore[arg-type]
        FakeMemgate(GIB),  # type: ignore[arg-type]
        AdmissionSettings(),
    )

    def fail(kind: str) -> Resource | None:
        raise ClusterError(f"{kind}: gone")

    cluster.find = fail  # type: ignore[method-assign]
    controller.run(0, lambda _: next(rounds))
    assert cluster.patches == []
