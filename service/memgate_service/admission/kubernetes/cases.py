"""The pods of an object -> cases: a job, and where it may run. No annotation of ours, no case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate.spec_text import read_job_text
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
    return tuple(_case(pod, texts, cluster) for pod in wanting or annotated)


#: YAML takes milliseconds, and the pods of a Deployment all say the same
_read = lru_cache(maxsize=1024)(read_job_text)


def _case(pod: Pod, texts: Mapping[str, str], cluster: tuple[GpuSpec, ...]) -> PodCase:
    name = JOB if JOB in pod.annotations else JOB_CONFIGMAP
    text = pod.annotations[name]
    source = f"annotation {name}"
    try:
        job = _read(text if name == JOB else texts[text])
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
    )
