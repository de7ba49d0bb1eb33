"""What the controller does with what is held; the API server and memgate are stood in for.

A real API server is in tests/integration/test_kube_admission.py; the one to be had is older than
scheduling gates, so how pods are released is tried here.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from memgate.client.conversation import ServedEstimate
from memgate.client.errors import (
    AnswerError,
    ClientError,
    NotDoneError,
    RefusedError,
    UnreachableError,
)
from memgate.contract import Work, WorkKind
from memgate.errors import Fault
from memgate.units import GIB
from memgate_service.admission.kubernetes.cluster import ClusterError, ObjectEvent, Resource
from memgate_service.admission.kubernetes.controller import HoldController
from memgate_service.admission.kubernetes.holding import hold
from memgate_service.admission.kubernetes.objects import SHAPES
from memgate_service.admission.kubernetes.patches import patched
from memgate_service.admission.kubernetes.rounds import Done, run_rounds
from memgate_service.admission.kubernetes.settings import AdmissionSettings
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
        self.config_maps_status = 404

    def forget_kinds(self) -> None:
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

    def record_event(self, event: ObjectEvent) -> None:
        """Note an event."""
        self.told.append((event.reason, event.message))

    def read_config_map(self, namespace: str, name: str) -> dict[str, str]:
        """Return a ConfigMap."""
        if f"{namespace}/{name}" not in self.config_maps:
            raise ClusterError("no such ConfigMap", self.config_maps_status)
        return self.config_maps[f"{namespace}/{name}"]


class FakeMemgate:
    """Says what it is told to."""

    def __init__(self, said: Any) -> None:
        self.said = said
        self.num_batches = 0

    def job(self, job_id: str) -> Any:
        """Know of no question: each is asked again."""
        raise UnreachableError(f"there is no job {job_id}")

    def estimate(self, job: Any, gpu: Any, *, wait: float, owner: Any) -> Any:
        """Answer at once, or not."""
        assert wait == 0
        if isinstance(self.said, Exception):
            raise self.said
        return ServedEstimate(**(make_estimate(self.said).model_dump() | {"id": "0" * 32}))

    def max_batch(self, job: Any, gpu: Any, *, wait: float, owner: Any) -> Any:
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
    controller = HoldController(
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
    batches = [
        "batch size 16 fits, the largest that does" in message for _, message in cluster.told
    ]
    assert batches == [True, False]  # advice: nobody waits for it for long


#: why there is no answer, although nothing is wrong with the job
_NO_ANSWERS: list[ClientError] = [
    NotDoneError("0" * 32, 0),
    UnreachableError("away"),
    AnswerError("busy", code="QUEUE_FULL", fault=Fault.PASSING, status=429),
    AnswerError("it was killed", code="PROCESS_LOST", fault=Fault.PASSING, job="0" * 32),
    AnswerError("not installed", code="RUNTIME_MISSING", fault=Fault.OPERATOR, job="0" * 32),
    RefusedError("no key", code="NO_KEY", fault=Fault.CALLER, status=401),
]


@pytest.mark.parametrize("said", _NO_ANSWERS, ids=[error.code for error in _NO_ANSWERS])
def test_without_an_answer_everything_waits(said: Exception) -> None:
    """Nothing is changed and no event is recorded for a fault that passes or is the operator's."""
    cluster = _cluster()
    assert _round(cluster, said, admission_on_timeout="admit") == Done(num_waiting=2)
    assert (cluster.patches, cluster.told) == ([], [])


@pytest.mark.parametrize("fault", [Fault.JOB, Fault.UNSUPPORTED])
@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("admit", Done(num_released=2)),
        ("reject", Done(num_refused=2)),
        ("hold", Done(num_refused=2)),
    ],
)
def test_what_has_no_estimate_is_the_operators_to_decide(
    policy: str, want: Done, fault: Fault
) -> None:
    """A job that cannot be run, by its own fault or by a limit of ours, counts as uncertain."""
    failed = AnswerError("no such layer", code="X", fault=fault, status=422, job="0" * 32)
    assert _round(_cluster(), failed, admission_on_uncertain=policy) == want


def test_what_its_author_got_wrong_is_refused() -> None:
    """A worker may find that out, not only we: the annotation is named."""
    cluster = _cluster()
    wrong = RefusedError("no optimizer Adamx", code="X", fault=Fault.CALLER, job="0" * 32)
    assert _round(cluster, wrong) == Done(num_refused=2)
    assert cluster.told[0][1] == "the pod: annotation memgate.dev/job: no optimizer Adamx"


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

    cluster.config_maps["team/jobs"] = {"job": str(SPEC)}
    assert _round(cluster, GIB) == Done(num_refused=1)
    assert "ConfigMap 'jobs' has no 'mine', it has: job" in cluster.told[0][1]


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param(404, Done(num_refused=1), id="it is not there"),
        pytest.param(403, Done(num_waiting=1), id="we may not read it"),
        pytest.param(0, Done(num_waiting=1), id="the API server is away"),
    ],
)
def test_a_config_map_that_is_missing_is_its_authors_mistake(status: int, want: Done) -> None:
    """One that cannot be read is not: the webhooks read ConfigMaps by the same rule."""
    document = make_pod(nodeSelector=T4, annotations={"memgate.dev/job-configmap": "jobs"})
    cluster = FakeCluster(pods=[_held(document, "Pod")])
    cluster.config_maps_status = status
    assert _round(cluster, GIB, admission_on_timeout="admit") == want


def test_a_cluster_that_is_away_is_asked_again() -> None:
    """The program goes on until it is told to stop."""
    cluster = _cluster()
    rounds = iter([True, False])
    controller = HoldController(
        cluster,  # type: ignore[arg-type]
        FakeMemgate(GIB),  # type: ignore[arg-type]
        AdmissionSettings(),
    )

    def fail(kind: str) -> Resource | None:
        raise ClusterError(f"{kind}: gone")

    cluster.find = fail  # type: ignore[method-assign]
    run_rounds([controller], 0, lambda _: next(rounds))
    assert cluster.patches == []
