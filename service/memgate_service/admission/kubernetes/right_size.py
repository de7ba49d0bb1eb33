"""A pod and what its job needs -> what to fill in: memory, a part of a GPU, a node.

Only what is missing is filled in. What a person wrote is left as it is, whether too much or too
little: the other webhook refuses what is too little.
"""

from __future__ import annotations

from typing import Any

import msgspec

from memgate.decision import Decision
from memgate.gpus import GpuSpec
from memgate.report import Estimate
from memgate.units import MIB
from memgate_service.admission.core.answers import KnownAnswer
from memgate_service.admission.kubernetes.cases import PodCase
from memgate_service.admission.kubernetes.json_parts import escape
from memgate_service.admission.kubernetes.objects import PRODUCT_LABEL, Pod
from memgate_service.admission.kubernetes.places import MIG_PREFIX, asks_for_gpu, names_gpu
from memgate_service.admission.kubernetes.settings import FILLS, AdmissionSettings, split

_GPU = "nvidia.com/gpu"
_HAMI = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage")
_VOLCANO = ("volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage")


def find_missing(case: PodCase, estimate: Estimate, settings: AdmissionSettings) -> dict[str, Any]:
    """Return what to fill in, by the JSON pointer to where."""
    is_auto = settings.right_size == "auto"
    wanted = FILLS if is_auto else split(settings.right_size)
    pod, mib = case.pod, _mib(case, estimate)
    found: dict[str, Any] = {}
    if "hami" in wanted and (not is_auto or pod.scheduler == "hami-scheduler"):
        found |= _memory(pod, _GPU, _HAMI, mib)
    if "volcano" in wanted:
        found |= _memory(pod, "volcano.sh/vgpu-number", _VOLCANO, mib)
    if "kai" in wanted and pod.scheduler == "kai-scheduler":
        found |= _kai(pod, mib)
    if "mig" in wanted and not found:
        found |= _mig(pod, estimate, settings.gpus)
    if "node-selector" in wanted and not names_gpu(pod):
        found |= _node(pod, estimate, settings)
    return found


def _mib(case: PodCase, estimate: Estimate) -> str:
    """Return what a job needs; if the GPU may be too small, all that it has.

    No node has room for more: a pod that was let in with a warning would never be scheduled.
    """
    needed = -(-estimate.needs_bytes // MIB)
    if case.is_unplaced:
        return str(needed)
    return str(min(needed, max(place.gpu.memory_bytes for place in case.places) // MIB))


def _memory(pod: Pod, resource: str, names: tuple[str, str], mib: str) -> dict[str, str]:
    """Declare memory next to a number of GPUs, if none is declared."""
    return {
        f"{container.pointer}/limits/{escape(names[0])}": mib
        for container in pod.containers
        if resource in container.asked and not container.limits.keys() & set(names)
    }


def _kai(pod: Pod, mib: str) -> dict[str, str]:
    """KAI shares GPUs by an annotation of the pod, and then allows none among the resources."""
    if asks_for_gpu(pod) or not pod.is_template:
        return {}
    return {f"{pod.pointer}/metadata/annotations/gpu-memory": mib}


def _mig(pod: Pod, estimate: Estimate, cluster: tuple[GpuSpec, ...]) -> dict[str, str]:
    """Ask for the smallest part of a GPU of the cluster that fits, if no GPU is asked for."""
    fitting = [gpu for gpu in cluster if " MIG " in gpu.product and gpu.name in estimate.fits_on]
    has_room = pod.is_template and pod.containers  # otherwise its resources come from elsewhere
    if asks_for_gpu(pod) or not has_room or not fitting:
        return {}
    profile = fitting[0].product.rpartition(" MIG ")[2]
    return {f"{pod.containers[0].pointer}/limits/{escape(MIG_PREFIX + profile)}": "1"}


def _node(pod: Pod, estimate: Estimate, settings: AdmissionSettings) -> dict[str, str]:
    """Choose the nodes with the cluster's smallest GPU that fits, if a whole one is wanted."""
    whole = [
        gpu for gpu in settings.gpus if " MIG " not in gpu.product and gpu.name in estimate.fits_on
    ]
    wants = any(_GPU in container.asked for container in pod.containers)
    if not wants or not whole or not pod.is_template:
        return {}
    label = settings.product_label(whole[0])
    return {f"{pod.pointer}/spec/nodeSelector/{escape(PRODUCT_LABEL)}": label}


class EstimateNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the annotation ``memgate.dev/estimate`` says."""

    decision: Decision
    gpu: str
    """The GPUs that the object may get, with commas."""
    needs_bytes: int
    id: str
    page: str


def write_note(case: PodCase, answer: KnownAnswer) -> str:
    """Write the annotation that says what the values filled in are based on."""
    note = EstimateNote(
        decision=answer.estimate.decision,
        gpu=",".join(place.gpu.name for place in case.places),
        needs_bytes=answer.estimate.needs_bytes,
        id=answer.job_id,
        page=answer.page,
    )
    return msgspec.json.encode(note).decode()
