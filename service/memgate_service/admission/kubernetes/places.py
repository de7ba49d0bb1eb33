"""A pod -> the places where it may run: kinds of GPU, and how much of each it declared.

A GPU is named by the first of these that says something: the name of a MIG resource, a node's
labels in selector and affinity, our own annotation, the GPUs that the operator says the cluster
has. Our annotation does not bind a scheduler: next to the others it counts only if it names less
memory. Memory is declared to HAMi, Volcano, Koordinator or KAI: a job may not take more than that,
however large the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from memgate.errors import InputError, OperatorError, UnsupportedGpuError
from memgate.gpus import (
    CATALOGUE,
    GpuSpec,
    find_gpu,
    find_machine,
    find_product,
    find_products,
    gpu_of_machine,
    list_gpus,
    parse_gpu,
)
from memgate.units import GIB, MIB
from memgate_service.admission.core.places import Declared, Place, Unit
from memgate_service.admission.kubernetes.objects import (
    GPU,
    MACHINE_LABELS,
    MEMORY_LABEL,
    PRODUCT_LABELS,
    Pod,
    Term,
)
from memgate_service.admission.kubernetes.quantities import read_quantity

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
    "koordinator.sh/gpu",
)

#: of a pod
_MAX_GPUS = 1 << 10

#: assumed for a job if nothing says where its pod will run; the largest if it declares more
_REFERENCE = "a100-80"

#: the profile of a MIG part: 1g.10gb, 1g.10gb.me; its size is the second figure
_PROFILE = re.compile(r"\d+g\.(\d+)gb(?:\..+)?")

#: the share of the memory in a node's label that a job sees: the label includes what the GPU keeps
#: for itself. A T4 (15360 MiB) shows 14909, an RTX 4060 (8188) 7933, which is the least share we
#: know
_SEEN = Decimal("0.968")


class UnknownLabelError(OperatorError):
    """A node's label names a GPU that the catalogue does not have: not the author's mistake."""


def asks_for_gpu(pod: Pod) -> bool:
    """Say whether a pod wants a GPU, or a part of one."""
    names = {name for container in pod.containers for name in container.asked}
    return (
        bool(names & {*_COUNTED, *_MEMORY, *_PERCENT})
        or any(name.startswith(MIG_PREFIX) for name in names)
        or bool({"gpu-memory", "gpu-fraction"} & pod.annotations.keys())
    )


def count_gpus(pod: Pod) -> int:
    """Return how many GPUs, or parts of them, a pod gets; 0 if it wants none."""
    number = Decimal(0)
    for container in pod.containers:
        for name, value in container.asked.items():
            if name in _COUNTED or name.startswith(MIG_PREFIX):
                amount = read_quantity(name, value)
                # Koordinator counts in hundredths
                number += amount / 100 if name == "koordinator.sh/gpu" else amount
    return min(max(int(number), int(asks_for_gpu(pod))), _MAX_GPUS)


def names_gpu(pod: Pod) -> bool:
    """Say whether a pod says on which kind of GPU it must run."""
    return GPU in pod.annotations or any(pod.nodes) or bool(_profiles(pod))


def find_places(pod: Pod, cluster: tuple[GpuSpec, ...]) -> tuple[Place, ...]:
    """Return where a pod may run; one place that is assumed if nothing is known.

    Raises:
        UnknownLabelError: if a label names a GPU that is not in the catalogue.
        InputError: if what is declared makes no sense.
    """
    gpus = _named(pod) or cluster
    if not gpus:
        return (_assumed(pod),)
    return tuple(
        _place(gpu, [*_declared(pod), *_declared_shares(pod, gpu)], is_assumed=False)
        for gpu in gpus
    )


def _named(pod: Pod) -> tuple[GpuSpec, ...]:
    if GPU not in pod.annotations:
        return _required(pod)
    own = _annotated(pod.annotations[GPU])
    try:
        required = _required(pod, own)
    except UnknownLabelError:  # which is what the annotation is for
        required = ()
    smaller = (min(gpu, own, key=lambda one: one.memory_bytes) for gpu in required)
    return tuple(dict.fromkeys(smaller)) or (own,)


def _required(pod: Pod, meant: GpuSpec | None = None) -> tuple[GpuSpec, ...]:
    """Return the GPUs that a pod can get; none if it may get others as well.

    If a label leaves open which of several GPUs it is, ``meant`` decides.
    """
    profiles = _profiles(pod)
    if profiles:
        products = [product for term in pod.nodes for product in _products(term)]
        return tuple(gpu for profile in profiles for gpu in _slices(profile, products))
    found = [_of_term(term, meant) for term in pod.nodes]
    return tuple(dict.fromkeys(gpu for gpus in found for gpu in gpus)) if all(found) else ()


def _profiles(pod: Pod) -> list[str]:
    return [
        name.removeprefix(MIG_PREFIX)
        for container in pod.containers
        for name in container.asked
        if name.startswith(MIG_PREFIX)
    ]


def _of_term(term: Term, meant: GpuSpec | None) -> list[GpuSpec]:
    """Return the GPUs of nodes for which all of a term's rules hold."""
    products = _products(term)
    if products:
        found = map(_cards, products)
        return [gpu for cards in found for gpu in ([meant] if meant in cards else cards)]
    exact = [rule.values for rule in term if not rule.is_more]
    least = [value for rule in term if rule.is_more for value in rule.values]
    memories = _common(exact) if exact else least
    sizes = [int(read_quantity(MEMORY_LABEL, value) * MIB * _SEEN) for value in memories]
    return [_described(memory) for memory in (sizes if exact else [max(sizes)] if sizes else [])]


def _products(term: Term) -> list[str]:
    """Return the products that a term allows, by the first label that names one."""
    for label in (*PRODUCT_LABELS, *MACHINE_LABELS):
        allowed = [rule.values for rule in term if rule.label == label]
        if allowed:
            return _common(allowed)
    return []


def _common(allowed: list[tuple[str, ...]]) -> list[str]:
    """Return what is in all lists; the first list if nothing is: no node is both."""
    first, *others = allowed
    return [value for value in first if all(value in one for one in others)] or list(first)


def _annotated(text: str) -> GpuSpec:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = text.strip()
    try:
        return parse_gpu(document).gpu
    except UnsupportedGpuError as error:
        raise error.about(f"annotation {GPU}") from None
    except InputError as error:
        raise InputError(f"annotation {GPU}: {error.message}") from None


def _cards(label: str) -> tuple[GpuSpec, ...]:
    """Return the GPUs, or the parts of one, that nodes with a label have."""
    found = find_products(label)
    if found:
        return found
    if machine := find_machine(label):
        return (gpu_of_machine(machine),)
    card, _, profile = label.partition("-MIG-")  # all GPUs of a node are cut into such parts
    profile = profile.removesuffix("-SHARED")
    if _PROFILE.fullmatch(profile) and find_product(card) is not None:
        return _slices(profile, [card])
    raise UnknownLabelError(
        f"the GPU {label!r} is not in the catalogue (see: memgate gpus); describe it in the"
        f""" annotation {GPU}: '{{"memory_bytes": N, "compute_capability": "8.6"}}'"""
    )


def _slices(profile: str, products: list[str]) -> tuple[GpuSpec, ...]:
    """Return the parts of GPUs that a MIG profile may mean."""
    profile = profile.removesuffix(".shared")  # jobs take turns: each sees all of it
    end = f"-{profile}"
    known = [gpu for gpu in CATALOGUE.values() if gpu.name.endswith(end)]
    whole = [product.partition("-MIG")[0] for product in products]
    cards = [gpu.name for product in whole for gpu in _cards(product)]
    ours = [gpu for gpu in known if not cards or gpu.name.removesuffix(end) in cards]
    if ours:
        return tuple(ours)
    size = _PROFILE.fullmatch(profile)
    if size is None:
        raise InputError(f"{MIG_PREFIX}{profile}: not a MIG profile, such as 1g.10gb")
    like = find_gpu(cards[0]) if cards else CATALOGUE[_REFERENCE]
    return (_described(int(size.group(1)) * GIB * 95 // 100, like),)  # a job sees a little less


def _described(memory_bytes: int, like: GpuSpec | None = None) -> GpuSpec:
    like = like or CATALOGUE[_REFERENCE]
    asked = {"memory_bytes": memory_bytes, "compute_capability": like.capability}
    return parse_gpu(asked).gpu


def _assumed(pod: Pod) -> Place:
    """Return a place for a pod that may run on any GPU: the size of a share is not known."""
    gpu = CATALOGUE[_REFERENCE]
    list(_declared_shares(pod, gpu))  # still refuses what makes no sense
    declared = list(_declared(pod))
    least = min((one.size_bytes for one in declared), default=0)
    return _place(gpu if least <= gpu.memory_bytes else list_gpus()[-1], declared, is_assumed=True)


def _place(gpu: GpuSpec, declared: list[Declared], *, is_assumed: bool) -> Place:
    """Return a GPU, or the smallest part of it that is declared."""
    least = min(declared, key=lambda one: (one.size_bytes, one.name), default=None)
    return Place(gpu=gpu, declared=least, is_assumed=is_assumed)


def _declared(pod: Pod) -> Iterator[Declared]:
    """Yield how much memory of its GPU a pod declares."""
    for container in pod.containers:
        for name, unit in _MEMORY.items():
            if name in container.asked:
                size_bytes = int(read_quantity(name, container.asked[name]) * unit)
                yield Declared(size_bytes=size_bytes, name=name)
    if "gpu-memory" in pod.annotations:
        amount = read_quantity("gpu-memory", pod.annotations["gpu-memory"])
        yield Declared(size_bytes=int(amount * MIB), name="annotation gpu-memory")


def _declared_shares(pod: Pod, gpu: GpuSpec) -> Iterator[Declared]:
    """Yield how much memory a pod declares as a share of its GPU."""
    for container in pod.containers:
        for name in _PERCENT:
            if name in container.asked:
                percent = min(read_quantity(name, container.asked[name]), Decimal(100))
                size_bytes = int(gpu.memory_bytes * percent / 100)
                yield Declared(size_bytes=size_bytes, name=name, unit=Unit.PERCENT)
    if "gpu-fraction" in pod.annotations:
        fraction = read_quantity("gpu-fraction", pod.annotations["gpu-fraction"])
        size_bytes = int(gpu.memory_bytes * min(fraction, Decimal(1)))
        yield Declared(size_bytes=size_bytes, name="annotation gpu-fraction", unit=Unit.FRACTION)
