"""The GPUs that a job gets, as the place says where it will run -> its spec, with them in it.

A scheduler's object says how many GPUs a job has. So its description need not, and where it does,
the two must agree: a person would not know which of them was answered for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memgate.errors import InputError, UnsupportedJobError
from memgate.gpus import GpuTarget
from memgate.jobspec import JobSpec, check_supported, parse_job_spec
from memgate.mistakes import Mistake, show_value
from memgate.nccl import NO_COMMUNICATION, Communicator, NcclUse
from memgate.report import Reason

#: the description does not say how a job is divided over its GPUs: as DDP is, not at all
STRATEGY_ASSUMED = "STRATEGY_ASSUMED"

#: nor can it be run like that, so one process was run
ONE_GPU_RUN = "ONE_GPU_RUN"

#: of a node at most, if nobody says how many it has
_USUAL_ON_A_NODE = 8

_ASSUMED = "ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpus:
    """The GPUs that a job gets."""

    num_gpus: int
    #: in one node, or one pod; None: not known
    gpus_per_node: int | None = None
    #: who says so, for people: ``spec.tasks``
    source: str
    #: other numbers that the same object may mean
    others: tuple[int, ...] = ()
    #: the job may use fewer
    is_most: bool = False

    def allows(self, num_gpus: int) -> bool:
        """Say whether a description with this number of GPUs agrees."""
        return num_gpus in (self.num_gpus, *self.others) or (
            self.is_most and num_gpus <= self.num_gpus
        )


def fill_world(document: object, world: JobGpus) -> object:
    """Return a spec as a person wrote it, with the number of GPUs if it says how to use them.

    Raises:
        InputError: if it says another number, naming both.
    """
    divided = document.get("distributed") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(divided, dict):
        return document
    _check_agreement(divided, world)
    filled = {"world_size": world.num_gpus, **divided}
    if filled["world_size"] == world.num_gpus and world.gpus_per_node:
        filled.setdefault("gpus_per_node", world.gpus_per_node)
    return {**document, "distributed": filled}


def fill_question(question: dict[str, Any]) -> dict[str, Any]:
    """Return a question as a caller wrote it, with the number of GPUs in the job's spec.

    Raises:
        InputError: if ``gpu.count`` and the spec say different numbers.
    """
    gpu = question.get("gpu")
    count = gpu.get("count") if isinstance(gpu, dict) else None
    if not isinstance(gpu, dict) or type(count) is not int or count < 1:
        return question
    per_node = gpu.get("per_node")
    is_full = type(per_node) is int and per_node >= 1
    world = JobGpus(num_gpus=count, gpus_per_node=per_node if is_full else None, source="gpu.count")
    job = fill_world(question.get("job"), world)
    return question if job is question.get("job") else {**question, "job": job}


def _check_agreement(divided: dict[str, Any], world: JobGpus) -> None:
    size, on_node = divided.get("world_size"), divided.get("gpus_per_node")
    if type(size) is int and not world.allows(size):
        raise _contradiction("world_size", size, f"{world.source} has {world.num_gpus} GPUs")
    # pods may share a node, but none is spread over several
    if type(on_node) is int and world.gpus_per_node and on_node % world.gpus_per_node:
        rule = f"{world.source} has {world.gpus_per_node} GPUs together"
        raise _contradiction("gpus_per_node", on_node, rule)


def _contradiction(field: str, value: object, rule: str) -> InputError:
    mistake = Mistake(
        field=f"distributed.{field}",
        value=show_value(value),
        rule=rule,
        next_step="leave it out of the description, or make the two agree",
    )
    return InputError.from_mistakes(mistake, what="job spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedJob:
    """A job as it is run for its GPUs, and what is to be said about that."""

    job: JobSpec
    notes: tuple[Reason, ...] = ()
    doubts: tuple[Reason, ...] = ()
    #: of a job that is run alone although it is not: what the others add
    communication: NcclUse = NO_COMMUNICATION


def divide_job(job: JobSpec, target: GpuTarget) -> DividedJob:
    """Return how a job is run on the GPUs that it gets, if its description does not say it.

    Each of them is taken to have the whole model: what data parallelism needs at most. Where that
    cannot be run, the answer is for one process, with what NCCL takes, and is in doubt.
    """
    if target.count == 1 or job.distributed is not None:
        return DividedJob(job=job)
    on_node = target.per_node or _fill_nodes(target.count)
    try:
        assumed = _assume(job, target.count, on_node)
    except (UnsupportedJobError, InputError) as error:
        return DividedJob(
            job=job,
            doubts=(_tell_one_run(target.count, error.message),),
            communication=NcclUse(
                communicators=(Communicator(num_ranks=target.count, ranks_on_node=on_node),)
            ),
        )
    return DividedJob(job=assumed, notes=(_tell_assumed(target.count),))


def _fill_nodes(count: int) -> int:
    return next(size for size in range(min(count, _USUAL_ON_A_NODE), 0, -1) if count % size == 0)


def _assume(job: JobSpec, count: int, on_node: int) -> JobSpec:
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    divided = {"strategy": _ASSUMED, "world_size": count, "gpus_per_node": on_node}
    assumed = parse_job_spec({**document, "distributed": divided})
    check_supported(assumed)
    return assumed


def _tell_assumed(count: int) -> Reason:
    return Reason(
        code=STRATEGY_ASSUMED,
        message=f"the job gets {count} GPUs, and its description does not say how it is divided"
        f" over them: each was taken to have the whole model ({_ASSUMED}), which needs the most; if"
        ' it is divided otherwise, say how: "distributed": {"strategy": "fsdp2"}',
    )


def _tell_one_run(count: int, why: str) -> Reason:
    return Reason(
        code=ONE_GPU_RUN,
        message=f"the job gets {count} GPUs, and its description does not say how it is divided"
        f" over them; one process was run, as if it were alone, because {_ASSUMED} cannot be run"
        f" with it ({why}): what it adds besides NCCL, such as buckets for gradients, is not in the"
        " figures",
    )
