"""How many GPUs a job gets follows from where it is asked to run."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import DistributedSpec, Strategy, parse_job_spec
from memgate.worlds import (
    ONE_GPU_RUN,
    STRATEGY_ASSUMED,
    JobGpus,
    divide_job,
    fill_question,
    fill_world,
)

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet50"},
    "input": {"shape": [3, 224, 224]},
    "batch_size": 8,
    "optimizer": {"name": "Adam"},
}

EIGHT = JobGpus(num_gpus=8, gpus_per_node=4, source="spec.tasks.0.replicas")


def _fill(world: JobGpus = EIGHT, /, **divided: Any) -> Any:
    filled: Any = fill_world({**JOB, "distributed": divided}, world)
    return filled["distributed"]


def test_the_number_of_gpus_is_filled_in() -> None:
    """The description needs no more than the job itself."""
    want = {"strategy": "fsdp2", "world_size": 8, "gpus_per_node": 4}

    assert _fill(strategy="fsdp2") == want
    assert _fill(strategy="fsdp2", world_size=8) == want
    assert _fill(strategy="fsdp2", gpus_per_node=8) == {**want, "gpus_per_node": 8}


def test_a_description_that_does_not_divide_stays_as_it_is() -> None:
    """What is assumed about it is decided where it is run, and told."""
    assert fill_world(JOB, EIGHT) == JOB
    assert fill_world("no object", EIGHT) == "no object"


@pytest.mark.parametrize(
    ("divided", "says"),
    [
        (
            {"world_size": 16},
            "distributed.world_size is 16: spec.tasks.0.replicas has 8 GPUs; leave it out",
        ),
        ({"gpus_per_node": 6}, "distributed.gpus_per_node is 6: spec.tasks.0.replicas has 4"),
    ],
)
def test_a_contradiction_names_both_values(divided: dict[str, Any], says: str) -> None:
    """And where they are."""
    with pytest.raises(InputError, match=says.replace(".", r"\.")):
        _fill(EIGHT, strategy="ddp", **divided)


def test_an_object_may_mean_several_numbers() -> None:
    """Pods of a Job may be one job or several, and a Ray cluster may be used in part."""
    job = JobGpus(num_gpus=2, source="a Job", others=(8,))
    cluster = JobGpus(num_gpus=8, source="a cluster", is_most=True)

    assert [job.allows(number) for number in (1, 2, 4, 8)] == [False, True, False, True]
    assert [cluster.allows(number) for number in (1, 8, 9)] == [True, True, False]
    assert _fill(job, strategy=Strategy.DDP, world_size=8) == {"strategy": "ddp", "world_size": 8}


def test_one_gpu_changes_nothing() -> None:
    """And nothing is said."""
    job = parse_job_spec(JOB)

    assert divide_job(job, GpuTarget(gpu=find_gpu("t4"))).job is job


def test_an_answer_for_many_gpus_says_what_was_assumed() -> None:
    """Each has the whole model."""
    divided = divide_job(parse_job_spec(JOB), GpuTarget(gpu=find_gpu("t4"), count=8, per_node=4))

    assert [note.code for note in divided.notes] == [STRATEGY_ASSUMED]
    assert divided.job.distributed == DistributedSpec(
        strategy=Strategy.DDP, world_size=8, gpus_per_node=4
    )
    assert not divided.doubts


def test_a_job_that_cannot_be_run_on_many_gpus_is_run_on_one() -> None:
    """With what NCCL takes, and in doubt."""
    job = parse_job_spec({**JOB, "ema": True})
    divided = divide_job(job, GpuTarget(gpu=find_gpu("t4"), count=12))

    assert divided.job is job
    assert [doubt.code for doubt in divided.doubts] == [ONE_GPU_RUN]
    assert "one process was run" in divided.doubts[0].message
    (one,) = divided.communication.communicators
    assert (one.num_ranks, one.ranks_on_node) == (12, 6)


def test_a_question_with_a_number_of_gpus_fills_the_spec() -> None:
    """What Slurm's gate asks; without ``count``, or a division, the question stays as it is."""
    divided = {**JOB, "distributed": {"strategy": "fsdp"}}
    gpu = {"name": "t4", "count": 4, "per_node": 2}
    asked = fill_question({"job": divided, "gpu": gpu})

    assert asked["job"]["distributed"] == {
        "strategy": "fsdp",
        "world_size": 4,
        "gpus_per_node": 2,
    }
    for question in ({"job": JOB, "gpu": gpu}, {"job": divided, "gpu": "t4"}, {"gpu": gpu}):
        assert fill_question(question) is question
    with pytest.raises(InputError, match=r"distributed\.world_size is 3: gpu\.count has 4 GPUs"):
        fill_question(
            {"job": {**JOB, "distributed": {"strategy": "ddp", "world_size": 3}}, "gpu": gpu}
        )
