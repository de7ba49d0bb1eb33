"""The pods of an object -> cases: a job, and where it may run. No annotation of ours, no case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate.spec_text import read_job_text
from memgate.worlds import JobGpus
from memgate_service.admission.core.cases import PlacedCase
from memgate_service.admission.kubernetes.objects import (
    GPU,
    JOB,
    JOB_CONFIGMAP,
    PRODUCT_LABEL,
    Pod,
)
from memgate_service.admission.kubernetes.places import (
    UnknownLabelError,
    asks_for_gpu,
    count_gpus,
    find_places,
)

#: different jobs in one object: each is work for a worker
_MAX_JOBS = 16

#: NAME or NAME/KEY, with the syntax of ConfigMap names and keys
_REFERENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}(/[A-Za-z0-9._-]{1,253})?")

_NAME_GPU_BY = f"the node selector {PRODUCT_LABEL} or the annotation {GPU}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCase(PlacedCase):
    """A pod whose job is known, and all places where it may run."""

    pod: Pod


def is_annotated(pod: Pod) -> bool:
    """Say whether a pod has a job for us to check."""
    return bool({JOB, JOB_CONFIGMAP} & pod.annotations.keys())


def references(pods: tuple[Pod, ...]) -> set[str]:
    """Return the ConfigMaps that pods name for their job.

    Raises:
        InputError: if one cannot be the name of a ConfigMap, or pods have too many jobs.
    """
    named = {pod.annotations[JOB] for pod in pods if JOB in pod.annotations}
    found = {
        pod.annotations[JOB_CONFIGMAP]
        for pod in pods
        if JOB not in pod.annotations and JOB_CONFIGMAP in pod.annotations
    }
    if len(named) + len(found) > _MAX_JOBS:
        number = len(named) + len(found)
        raise InputError(f"this has {number} different jobs; an object may have {_MAX_JOBS}")
    for reference in found:
        if _REFERENCE.fullmatch(reference) is None:
            shown = repr(reference[:60])
            raise InputError(f"annotation {JOB_CONFIGMAP} is {shown}: write NAME or NAME/KEY")
    return found


def find_cases(
    pods: tuple[Pod, ...], texts: Mapping[str, str], cluster: tuple[GpuSpec, ...]
) -> tuple[PodCase, ...]:
    """Return the pods to check; ``texts`` are the job specs in ConfigMaps.

    If the object itself has the annotation, that applies to the pods that want a GPU. If none does,
    it applies to all of them: a GPU may be filled in.

    Raises:
        InputError: naming the annotation, and what is wrong with it.
    """
    annotated = [pod for pod in pods if is_annotated(pod)]
    wanting = [pod for pod in annotated if asks_for_gpu(pod)]
    chosen = wanting or annotated
    return tuple(_case(pod, find_world(pod, chosen), texts, cluster) for pod in chosen)


#: YAML takes milliseconds, and the pods of a Deployment all say the same
_read = lru_cache(maxsize=1024)(read_job_text)


def _case(
    pod: Pod, world: JobGpus | None, texts: Mapping[str, str], cluster: tuple[GpuSpec, ...]
) -> PodCase:
    name = _source(pod)
    text = pod.annotations[name]
    source = f"annotation {name}"
    try:
        job = _read(text if name == JOB else texts[text], world)
    except InputError as error:
        raise InputError(f"{pod.label}: {source}: {error.message}") from None
    doubt = ""
    try:
        places = find_places(pod, cluster)
    except UnknownLabelError as error:
        places, doubt = (), error.message
    return PodCase(
        pod=pod,
        job=job,
        places=places,
        label=pod.label,
        source=source,
        name_gpu_by=_NAME_GPU_BY,
        doubt=doubt,
        world=world,
    )


def _source(pod: Pod) -> str:
    return JOB if JOB in pod.annotations else JOB_CONFIGMAP


def find_world(pod: Pod, pods: Sequence[Pod]) -> JobGpus | None:
    """Return the GPUs of a pod's job: its own, or those of all pods with the same job.

    None if that is not known: the pod asks for none.
    """
    own = _processes(pod)
    if not own:
        return None
    group = pod.copies.group
    alike = [one for one in pods if _described(one) == _described(pod)]
    together = sum(_processes(one) * one.copies.number for one in alike)
    places = list(dict.fromkeys(one.copies.source or one.label for one in alike))
    source = f"this object ({'; '.join(places)})"
    is_even = all(_processes(one) == own for one in alike)
    if group in ("separate", "perhaps") or not together:
        others = (together,) if group == "perhaps" and together else ()
        return JobGpus(num_gpus=own, gpus_per_node=_on_node(own), source=pod.label, others=others)
    return JobGpus(
        num_gpus=together,
        gpus_per_node=_on_node(own) if is_even else None,
        source=source,
        is_most=group == "at_most",
    )


def _described(pod: Pod) -> tuple[str, str]:
    return _source(pod), pod.annotations[_source(pod)]


def _processes(pod: Pod) -> int:
    """Return how many processes of a pod have a GPU, one for each unless it says another number."""
    gpus = count_gpus(pod)
    return gpus if pod.copies.processes is None else min(gpus, pod.copies.processes)


def _on_node(num_gpus: int) -> int | None:
    """Return how many GPUs are surely in one node; pods with one may share a node."""
    return num_gpus if num_gpus > 1 else None
