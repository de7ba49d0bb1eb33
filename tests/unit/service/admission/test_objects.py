"""Pods are found wherever an object describes them, and nothing breaks if it is something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.errors import InputError
from memgate_service.admission.kubernetes.cases import is_annotated
from memgate_service.admission.kubernetes.holding import hold, is_held, release
from memgate_service.admission.kubernetes.objects import SHAPES, find_pods
from memgate_service.admission.kubernetes.patches import as_written, fill, take_back
from memgate_service.admission.kubernetes.settings import Shape
from tests.admission import read_recorded

_CREATED = [
    ("create-job", ["/spec/template"]),
    ("create-cronjob", ["/spec/jobTemplate/spec/template"]),
    ("create-deployment", ["/spec/template"]),
    ("create-statefulset-volcano", ["/spec/template"]),
    ("create-pod-hami", [""]),
    (
        "create-pytorchjob",
        [f"/spec/pytorchReplicaSpecs/{name}/template" for name in ("Master", "Worker")],
    ),
    (
        "create-rayjob",
        [
            "/spec/rayClusterSpec/headGroupSpec/template",
            "/spec/rayClusterSpec/workerGroupSpecs/0/template",
        ],
    ),
    ("create-jobset", ["/spec/replicatedJobs/0/template/spec/template"]),
    ("create-trainjob", ["/spec/trainer"]),
]


@pytest.mark.parametrize(("name", "want"), _CREATED)
def test_the_pods_of_recorded_objects_are_found(name: str, want: list[str]) -> None:
    """In each kind that we know, as a real API server sent it."""
    request = read_recorded(name)["request"]
    kind = f"{request['kind']['kind']}.{request['kind']['group']}".rstrip(".")

    pods = find_pods(request["object"], SHAPES[kind])

    assert [pod.pointer for pod in pods] == want
    assert all(map(is_annotated, pods))


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("metadata", "annotations", "labels", "spec", "template", "containers"),
                    *("resources", "limits", "memgate.dev/job", "memgate.dev/filled", "suspend"),
                    *("schedulingGates", "name", "trainer", "affinity", "nodeSelector"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@given(_JSON.filter(lambda value: isinstance(value, dict)))
def test_nothing_that_an_object_holds_breaks_us(document: Any) -> None:
    """Other people's kinds may hold anything."""
    for shape in SHAPES.values():
        find_pods(document, shape)
        is_held(document, shape)
        release(document, shape)
    as_written(document)
    take_back(document)


@pytest.mark.parametrize(
    ("kind", "make_spec"),
    [
        ("CronJob.batch", lambda template: {"jobTemplate": template}),
        ("JobSet.jobset.x-k8s.io", lambda template: {"replicatedJobs": [{"template": template}]}),
    ],
)
def test_a_template_of_jobs_may_have_the_annotation(
    kind: str, make_spec: Callable[[Any], dict[str, Any]]
) -> None:
    """Jobs made from it will have it, so it counts at once; nearer to the pod counts more."""
    pod: dict[str, Any] = {"metadata": {}, "spec": {}}
    noted = {"memgate.dev/job": "a", "memgate.dev/gpu": "t4"}
    spec = make_spec({"metadata": {"annotations": noted}, "spec": {"template": pod}})
    document = {"metadata": {"annotations": {"memgate.dev/job-configmap": "c"}}, "spec": spec}
    (found,) = find_pods(document, SHAPES[kind])
    assert found.annotations == noted
    pod["metadata"] = {"annotations": {"memgate.dev/job": "b"}}
    (found,) = find_pods(document, SHAPES[kind])
    assert found.annotations == {"memgate.dev/job": "b", "memgate.dev/gpu": "t4"}


def test_a_kind_of_the_operators_own_is_looked_into() -> None:
    """By a path with wildcards, over lists and objects."""
    shape = Shape(templates=("/spec/groups/*/*/pod~1template",))
    document = {"spec": {"groups": [{"a": {"pod/template": {}}, "b": 3}, None]}}
    assert [pod.pointer for pod in find_pods(document, shape)] == ["/spec/groups/0/a/pod~1template"]
    assert find_pods(document, shape)[0].label == "spec.groups.0.a.pod~1template"


def test_holding_what_cannot_be_held_changes_nothing() -> None:
    """An object whose pods have the annotation needs no patch: its pods are held."""
    document = read_recorded("create-deployment")["request"]["object"]
    assert hold(document, SHAPES["Deployment.apps"]) == []
    assert fill(document, {}, {}) == []


def test_what_has_no_place_for_a_value_is_refused() -> None:
    """An API server passes a list on where a map belongs: it checks that after the webhooks."""
    pointer = "/spec/nodeSelector/nvidia.com~1gpu.product"

    with pytest.raises(InputError, match="/spec/nodeSelector is a list, not an object"):
        fill({"spec": {"nodeSelector": []}}, {pointer: "Tesla-T4"}, {})


def _copies(kind: str, document: Any) -> list[tuple[int, int | None]]:
    return [(pod.copies.number, pod.copies.processes) for pod in find_pods(document, SHAPES[kind])]


def test_pods_of_one_job_are_counted() -> None:
    """Wherever a kind writes how many there are."""
    template: Any = {"spec": {"containers": []}}
    worker: dict[str, Any] = {"template": template}
    pytorch = {"Master": {"replicas": 1, "template": template}, "Worker": worker}
    assert _copies(
        "PyTorchJob.kubeflow.org",
        {"spec": {"nprocPerNode": "4", "pytorchReplicaSpecs": pytorch}},
    ) == [(1, 4), (1, 4)]
    assert _copies(
        "MPIJob.kubeflow.org",
        {
            "spec": {
                "slotsPerWorker": 8,
                "mpiReplicaSpecs": {"Worker": {"replicas": 3, **worker}},
            }
        },
    ) == [(3, 8)]
    sets = {"replicas": 2, "template": {"spec": {"parallelism": 4, "template": template}}}
    assert _copies("JobSet.jobset.x-k8s.io", {"spec": {"replicatedJobs": [sets]}}) == [(8, None)]
    tasks = [{"replicas": 5, "template": template}]
    assert _copies("Job.batch.volcano.sh", {"spec": {"tasks": tasks}}) == [(5, None)]
    trainer = {"numNodes": 4, "numProcPerNode": "auto", "resourcesPerNode": {}}
    assert _copies("TrainJob.trainer.kubeflow.org", {"spec": {"trainer": trainer}}) == [(4, None)]


def test_a_group_that_grows_by_itself_counts_as_large_as_it_may_become() -> None:
    """Otherwise every step of an autoscaler would be another job."""
    group = {"replicas": 1, "maxReplicas": 6, "template": {"spec": {}}}
    document = {"spec": {"workerGroupSpecs": [group]}}

    assert _copies("RayCluster.ray.io", document) == [(6, None)]


def test_how_many_there_are_does_not_matter_where_each_is_a_job() -> None:
    """Scaling a Deployment is no reason to ask again."""
    document = {"spec": {"replicas": 3, "template": {"spec": {}}}}

    assert _copies("Deployment.apps", document) == [(1, None)]
