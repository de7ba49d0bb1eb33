"""The GPUs of a job follow from the object that its pods are in."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError
from memgate.gpus import CATALOGUE
from memgate.worlds import JobGpus
from memgate_service.admission.kubernetes.cases import find_cases, find_world
from memgate_service.admission.kubernetes.objects import JOB, SHAPES, find_pods
from tests.admission import read_recorded

SPEC = (
    "model: {source: torchvision, name: resnet50}\ninput: {shape: [3, 224, 224]}\n"
    "batch_size: 8\noptimizer: {name: Adam}\n"
)


def _template(gpus: int, **spec: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    return {"spec": {"containers": [{"resources": {"limits": limits}}], **spec}}


def _worlds(kind: str, spec: dict[str, Any], text: str = SPEC) -> list[JobGpus | None]:
    document = {"metadata": {"annotations": {JOB: text}}, "spec": spec}
    pods = find_pods(document, SHAPES[kind])
    return [case.world for case in find_cases(pods, {}, ())]


def _pytorch(master: int, worker: int, gpus: int, **more: Any) -> dict[str, Any]:
    return {
        "pytorchReplicaSpecs": {
            "Master": {"replicas": master, "template": _template(gpus)},
            "Worker": {"replicas": worker, "template": _template(gpus)},
        },
        **more,
    }


def test_all_pods_of_a_job_are_its_world() -> None:
    """One of the master and three workers, with eight GPUs each."""
    worlds = _worlds("PyTorchJob.kubeflow.org", _pytorch(1, 3, 8))

    assert [(one.num_gpus, one.gpus_per_node) for one in worlds if one] == [(32, 8), (32, 8)]


def test_fewer_processes_than_gpus_count() -> None:
    """If the object says how many are started in a pod."""
    worlds = _worlds("PyTorchJob.kubeflow.org", _pytorch(1, 1, 8, nprocPerNode="2"))

    assert [(one.num_gpus, one.gpus_per_node) for one in worlds if one] == [(4, 2), (4, 2)]


def test_a_launcher_without_gpus_is_not_counted() -> None:
    """Of an MPIJob, as the operator's own examples have it."""
    spec = {
        "slotsPerWorker": 4,
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": _template(0)},
            "Worker": {"replicas": 2, "template": _template(4)},
        },
    }

    (world,) = _worlds("MPIJob.kubeflow.org", spec)

    assert world is not None
    assert (world.num_gpus, world.gpus_per_node) == (8, 4)


@pytest.mark.parametrize(
    ("kind", "spec", "want"),
    [
        (
            "JobSet.jobset.x-k8s.io",
            {
                "replicatedJobs": [
                    {
                        "replicas": 1,
                        "template": {"spec": {"parallelism": 4, "template": _template(8)}},
                    }
                ]
            },
            32,
        ),
        ("Job.batch.volcano.sh", {"tasks": [{"replicas": 2, "template": _template(4)}]}, 8),
        (
            "TrainJob.trainer.kubeflow.org",
            {"trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}}},
            8,
        ),
        ("Job.batch", {"parallelism": 4, "template": _template(2)}, 2),
        ("Deployment.apps", {"replicas": 4, "template": _template(2)}, 2),
    ],
)
def test_each_kind_has_its_own_way(kind: str, spec: dict[str, Any], want: int) -> None:
    """Pods of a Job or of a Deployment are jobs of their own unless the description says more."""
    (world,) = _worlds(kind, spec)

    assert world is not None
    assert world.num_gpus == want


def test_the_description_may_divide_the_pods_of_a_job() -> None:
    """Then all of them are meant."""
    text = f"{SPEC}distributed: {{strategy: ddp, world_size: 8}}\n"
    spec = {"parallelism": 4, "template": _template(2)}
    (world,) = _worlds("Job.batch", spec, text)

    assert world is not None
    assert world.others == (8,)


def test_a_contradiction_between_object_and_description_is_told() -> None:
    """With both numbers, and where they are."""
    text = f"{SPEC}distributed: {{strategy: ddp, world_size: 16}}\n"

    with pytest.raises(InputError) as caught:
        _worlds("PyTorchJob.kubeflow.org", _pytorch(1, 3, 2), text)

    assert "distributed.world_size is 16: this object" in caught.value.message
    assert "spec.pytorchReplicaSpecs.Worker.replicas) has 8 GPUs" in caught.value.message


def test_questions_are_about_all_gpus() -> None:
    """So that no answer is silently for one of them."""
    request = read_recorded("create-pytorchjob")["request"]
    pods = find_pods(request["object"], SHAPES["PyTorchJob.kubeflow.org"])
    case = find_cases(pods, {}, ())[0]

    assert [one.gpu.count for one in case.questions().values()] == [4]


def test_more_gpus_than_there_are_is_a_mistake() -> None:
    """Not an error of ours, which would let the object in."""
    document = {"metadata": {"annotations": {JOB: SPEC}}, "spec": _pytorch(1, 2**20, 8)}
    pods = find_pods(document, SHAPES["PyTorchJob.kubeflow.org"])
    case = find_cases(pods, {}, (CATALOGUE["t4"],))[0]

    with pytest.raises(InputError, match="the GPUs of this job: count"):
        case.questions()


def test_pods_without_a_gpu_have_no_world() -> None:
    """One may be filled in."""
    document = {"metadata": {"annotations": {JOB: SPEC}}, "spec": {"template": _template(0)}}
    (pod,) = find_pods(document, SHAPES["Job.batch"])

    assert find_world(pod, [pod]) is None
