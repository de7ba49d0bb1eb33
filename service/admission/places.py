"""A pod -> the places where it may come to run: kinds of GPU, and how much of each it declared.

A GPU is named by (the first that says so counts) our own annotation, the name of a MIG resource, a
node's labels in its selector or its affinity, the GPUs that the operator says the cluster has.
Memory is declared to HAMi, Volcano, Koordinator or KAI: a job may not take more than that, however
large the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import msgspec

from memgate.errors import InputError
from memgate.gpus import CATALOGUE, GpuSpec, find_gpu, find_product, parse_gpu
from memgate.units import GIB, MIB
from service.admission.objects import GPU, Pod, as_list

#: labels of nodes that name their GPU: NVIDIA's feature discovery, Google's, Amazon's, Karpenter's
PRODUCT_LABEL = "nvidia.com/gpu.product"
_PRODUCT_LABELS = (
    PRODUCT_LABEL,
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
#: what a node's GPU has, in MiB
_MEMORY_LABEL = "nvidia.com/gpu.memory"

MIG_PREFIX = "nvidia.com/mig-"

#: whole GPUs, or parts of them, by number
_COUNTED = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "volcano.sh/vgpu-number",
    "koordinator.sh/gpu",
)
#: memory for each GPU, and the unit in which a bare number is
_MEMORY = {
    "nvidia.com/gpumem": MIB,
    "volcano.sh/vgpu-memory": MIB,
    "koordinator.sh/gpu-memory": 1,
}
#: memory for each GPU, in percent of it
_PERCENT = (
    "nvidia.com/gpumem-percentage",
    "volcano.sh/vgpu-memory-percentage",
    "koordinator.sh/gpu-memory-ratio",
)

#: on which memory is counted if nobody says where a pod will run; the smaller parts of it declared
_REFERENCE = "a100-80"

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


class UnknownGpuError(InputError):
    """A pod names a GPU that the catalogue has not; that is no fault of the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A GPU, or a part of one."""

    gpu: GpuSpec
    #: how much of it a pod declared, and where; None is all of it
    declared_bytes: int | None = None
    declared_by: str = ""
    #: nobody said that it would be this one
    is_assumed: bool = False

    @property
    def capacity_bytes(self) -> int:
        """What a job can have there."""
        if self.declared_bytes is None:
            return self.gpu.memory_bytes
        return min(self.declared_bytes, self.gpu.memory_bytes)


def asks_for_gpu(pod: Pod) -> bool:
    """Say whether a pod wants a GPU, or a part of one."""
    names = {name for container in pod.containers for name in container.limits}
    return (
        bool(names & {*_COUNTED, *_MEMORY, *_PERCENT})
        or any(name.startswith(MIG_PREFIX) for name in names)
        or bool({"gpu-memory", "gpu-fraction"} & pod.annotations.keys())
    )


def names_gpu(pod: Pod) -> bool:
    """Say whether a pod says on which kind of GPU it must run."""
    labels = {label for label, _ in _required_labels(pod)}
    names = {name for container in pod.containers for name in container.limits}
    return (
        GPU in pod.annotations
        or bool(labels & {*_PRODUCT_LABELS, _MEMORY_LABEL})
        or any(name.startswith(MIG_PREFIX) for name in names)
    )


def find_places(pod: Pod, cluster: tuple[GpuSpec, ...]) -> tuple[Place, ...]:
    """Return where a pod may run; one place that is assumed if nothing is known.

    Raises:
        UnknownGpuError: if it names a GPU that is not in the catalogue.
        InputError: if what is declared makes no sense.
    """
    gpus = _named(pod)
    is_assumed = not gpus
    if is_assumed:
        gpus = cluster or (CATALOGUE[_REFERENCE],)
    return tuple(_place(pod, gpu, is_assumed=is_assumed and not cluster) for gpu in gpus)


def _named(pod: Pod) -> tuple[GpuSpec, ...]:
    if GPU in pod.annotations:
        return (_annotated(pod.annotations[GPU]),)
    labels = list(_required_labels(pod))
    products = [value for label, value in labels if label in _PRODUCT_LABELS]
    profiles = [
        name.removeprefix(MIG_PREFIX)
        for container in pod.containers
        for name in container.limits
        if name.startswith(MIG_PREFIX)
    ]
    if profiles:
        return tuple(gpu for profile in profiles for gpu in _slices(profile, products))
    if products:
        return tuple(map(_product, products))
    memories = [
        _quantity(_MEMORY_LABEL, value) * MIB for label, value in labels if label == _MEMORY_LABEL
    ]
    return tuple(_described(memory) for memory in memories)


def _annotated(text: str) -> GpuSpec:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = text.strip()
    try:
        return parse_gpu(document).gpu
    except InputError as error:
        raise InputError(f"annotation {GPU}: {error.message}") from None


def _required_labels(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield labels of which a node must have one: by selector, or by any term of the affinity."""
    yield from pod.node_selector.items()
    for term in pod.affinity:
        for rule in as_list(term.get("matchExpressions")):
            if not isinstance(rule, Mapping):
                continue
            key, operator = rule.get("key"), rule.get("operator")
            if operator == "In" or (operator == "Gt" and key == _MEMORY_LABEL):
                for value in as_list(rule.get("values")):
                    yield str(key), str(value)


def _product(label: str) -> GpuSpec:
    gpu = find_product(label)
    if gpu is None:
        raise UnknownGpuError(
            f"the GPU {label!r} is not in the catalogue (see: memgate gpus); describe it in the"
            f""" annotation {GPU}: '{{"memory_bytes": N, "compute_capability": "8.6"}}'"""
        )
    return gpu


def _slices(profile: str, products: list[str]) -> tuple[GpuSpec, ...]:
    """Return the parts of GPUs that a MIG profile may mean."""
    end = f"-{profile}"
    known = [gpu for gpu in CATALOGUE.values() if gpu.name.endswith(end)]
    cards = [_product(product.partition("-MIG")[0]).name for product in products]
    ours = [gpu for gpu in known if not cards or gpu.name.removesuffix(end) in cards]
    if ours:
        return tuple(ours)
    size = re.fullmatch(r"\d+g\.(\d+)gb(?:\..+)?", profile)
    if size is None:
        raise InputError(f"{MIG_PREFIX}{profile}: no MIG profile, such as 1g.10gb")
    like = find_gpu(cards[0]) if cards else CATALOGUE[_REFERENCE]
    return (_described(int(size.group(1)) * GIB * 95 // 100, like),)  # a job sees a little less


def _described(memory_bytes: int, like: GpuSpec = CATALOGUE[_REFERENCE]) -> GpuSpec:
    major, minor = like.compute_capability
    asked = {"memory_bytes": memory_bytes, "compute_capability": f"{major}.{minor}"}
    return parse_gpu(asked).gpu


def _place(pod: Pod, gpu: GpuSpec, *, is_assumed: bool) -> Place:
    declared = list(_declared(pod, gpu))
    if not declared:
        return Place(gpu=gpu, is_assumed=is_assumed)
    least, by = min(declared)
    return Place(gpu=gpu, declared_bytes=least, declared_by=by, is_assumed=is_assumed)


def _declared(pod: Pod, gpu: GpuSpec) -> Iterator[tuple[int, str]]:
    """Yield how much memory of a GPU a pod declares, and by what."""
    for container in pod.containers:
        for name, unit in _MEMORY.items():
            if name in container.limits:
                yield _quantity(name, container.limits[name]) * unit, name
        for name in _PERCENT:
            if name in container.limits:
                percent = min(_quantity(name, container.limits[name]), 100)
                yield gpu.memory_bytes * percent // 100, name
    if "gpu-memory" in pod.annotations:
        name = "gpu-memory"
        yield _quantity(name, pod.annotations[name]) * MIB, f"annotation {name}"
    if "gpu-fraction" in pod.annotations:
        fraction = _number("gpu-fraction", pod.annotations["gpu-fraction"])
        yield int(gpu.memory_bytes * min(fraction, Decimal(1))), "annotation gpu-fraction"


def _quantity(name: str, value: object) -> int:
    """Read an amount as Kubernetes writes it: 8000, 8k, 4Gi.

    Raises:
        InputError: if it is none.
    """
    text = str(value)
    number = text.rstrip("kKMGTi")
    unit = _UNITS.get(text[len(number) :])
    if unit is None:
        raise InputError(f"{name} is {text[:60]!r}: write a number, such as 8000 or 4Gi")
    return int(_number(name, number) * unit)


def _number(name: str, text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise InputError(f"{name} is {text[:60]!r}: write a number") from None
    if not number.is_finite() or not 0 < number < 1 << 50:
        raise InputError(f"{name} is {text[:60]!r}: write a number above 0")
    return number
