"""The pods of an object -> cases: a job, and where it may run. No annotation of ours, no case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from memgate.contract import Work, WorkKind
from memgate.errors import InputError
from memgate.gpus import CATALOGUE, GpuRequest, GpuSpec
from memgate.jobspec import JobSpec
from memgate.spec_text import read_job_text
from memgate_service.admission.kubernetes.objects import JOB, JOB_CONFIGMAP, Pod
from memgate_service.admission.kubernetes.places import (
    Place,
    UnknownGpuError,
    asks_for_gpu,
    find_places,
)

#: different jobs in one object: somebody must work on each
_MAX_JOBS = 16

#: NAME or NAME/KEY, as names of ConfigMaps and their keys are
_REFERENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}(/[A-Za-z0-9._-]{1,253})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pod whose job is known, and all places where it may run."""

    pod: Pod
    job: JobSpec
    places: tuple[Place, ...]
    #: why its places are not known
    doubt: str = ""

    @property
    def is_unplaced(self) -> bool:
        """Nobody said on what it will run, nor how much memory it may take: nothing to check."""
        return all(place.is_assumed and place.declared_bytes is None for place in self.places)

    def questions(self) -> dict[str, Work]:
        """Return what to ask, by the generation of the GPU.

        One run tells for all GPUs of a generation, and for every part of them.
        """
        largest: dict[str, GpuSpec] = {}
        for place in self.places:
            known = largest.get(place.gpu.generation)
            if known is None or known.memory_bytes < place.gpu.memory_bytes:
                largest[place.gpu.generation] = place.gpu
        return {
            generation: Work(kind=WorkKind.ESTIMATE, job=self.job, gpu=_request(gpu))
            for generation, gpu in largest.items()
        }

    @property
    def roomiest(self) -> Place:
        """Where it has most; there is one, unless there is a doubt."""
        return max(self.places, key=lambda place: place.capacity_bytes)

    def batch_question(self) -> Work:
        """Return what to ask for the largest batch that fits where it has most."""
        place = self.roomiest
        taken = place.gpu.memory_bytes - place.capacity_bytes
        return Work(kind=WorkKind.MAX_BATCH, job=self.job, gpu=_request(place.gpu, taken))


def _request(gpu: GpuSpec, taken_bytes: int = 0) -> GpuRequest:
    if gpu.name in CATALOGUE:
        return GpuRequest(name=gpu.name, already_used_bytes=taken_bytes)
    major, minor = gpu.compute_capability
    return GpuRequest(
        memory_bytes=gpu.memory_bytes,
        compute_capability=f"{major}.{minor}",
        already_used_bytes=taken_bytes,
    )


def is_annotated(pod: Pod) -> bool:
    """Say whether a pod wants to be looked at."""
    return bool({JOB, JOB_CONFIGMAP} & pod.annotations.keys())


def references(pods: tuple[Pod, ...]) -> set[str]:
    """Return the ConfigMaps that pods say their job is in.

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
) -> tuple[Case, ...]:
    """Return the pods that must be looked at; ``texts`` are the ConfigMaps they refer to.

    Of an object that has the annotation itself, those pods are meant that want a GPU. If none does,
    all are: a GPU may be filled in.

    Raises:
        InputError: naming the annotation, and what is wrong with it.
    """
    annotated = [pod for pod in pods if is_annotated(pod)]
    wanting = [pod for pod in annotated if asks_for_gpu(pod)]
    return tuple(_case(pod, texts, cluster) for pod in wanting or annotated)


#: YAML takes milliseconds, and the pods of a Deployment all say the same
_read = lru_cache(maxsize=1024)(read_job_text)


def _case(pod: Pod, texts: Mapping[str, str], cluster: tuple[GpuSpec, ...]) -> Case:
    name = JOB if JOB in pod.annotations else JOB_CONFIGMAP
    text = pod.annotations[name]
    try:
        job = _read(text if name == JOB else texts[text])
    except InputError as error:
        raise InputError(f"{pod.label}: annotation {name}: {error.message}") from None
    try:
        return Case(pod=pod, job=job, places=find_places(pod, cluster))
    except UnknownGpuError as error:
        return Case(pod=pod, job=job, places=(), doubt=error.message)
