"""What people, tools and clouds call a GPU -> the GPU of the catalogue, or similar names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from memgate.errors import UnknownGpuError, UnsupportedGpuError
from memgate.gpus.catalogue import CATALOGUE
from memgate.gpus.foreign import find_foreign
from memgate.gpus.instances import Machine, find_machine, has_attached_gpus
from memgate.gpus.spec import GpuSpec
from memgate.mistakes import Mistake, show_value, suggest
from memgate.near_names import find_near, loosen
from memgate.units import format_size

#: how many names a message suggests
_MAX_NEAR = 4

#: true at every door: HTTP, a spec's file, the command line's --gpu
_DESCRIBE = 'describe it as {"memory_bytes": N, "compute_capability": "8.6"}'
_LISTED = "memgate gpus lists the names"


def find_gpu(name: str) -> GpuSpec:
    """Return a GPU of the catalogue, by its name or an unambiguous variant of it.

    Raises:
        UnknownGpuError: with the names that it may mean, or similar ones.
        UnsupportedGpuError: if it is another vendor's.
    """
    found = understand(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownGpuError.from_mistakes(_ambiguous(name, found))
    if meaning := find_foreign(name):
        raise UnsupportedGpuError.from_mistakes(_foreign(name, meaning))
    if has_attached_gpus(name):
        raise UnknownGpuError.from_mistakes(_attached(name))
    near = _find_similar(name)
    step = f"{_DESCRIBE}; {_LISTED}"
    mistake = Mistake(
        field="gpu",
        value=show_value(name),
        rule="it is not in the catalogue",
        next_step=" otherwise ".join(filter(None, (suggest(near), step))),
        near=near,
    )
    raise UnknownGpuError.from_mistakes(mistake)


def understand(text: str) -> tuple[GpuSpec, ...]:
    """Return the GPUs that a name means: one, several if it leaves out the memory, or none.

    ``RTX 3060`` and ``rtx3060`` are ``rtx-3060``; ``NVIDIA A100-SXM4-80GB`` and ``a100 80gb`` are
    ``a100-80``; ``a100`` is two cards; ``p4d.24xlarge`` has one kind. Only the memory may be left
    out: an RTX 2080 is not the 2080 Ti, nor an H20 the H200.
    """
    if text in CATALOGUE:
        return (CATALOGUE[text],)
    same = [gpu for gpu in CATALOGUE.values() if loosen(gpu.name) == loosen(text)]
    if same:
        return tuple(same)
    if _VENDORS.match(text) and (gpu := find_product(text)):
        return (gpu,)
    if machine := find_machine(text):
        return (gpu_of_machine(machine),)
    full = _with_words(text)
    short = [gpu for gpu in CATALOGUE.values() if _essence(text, gpu) == _card(gpu)]
    return tuple(full or short)


def gpu_of_machine(machine: Machine) -> GpuSpec:
    """Return the GPU, or the part of one, that a cloud's machine has."""
    gpu = CATALOGUE[machine.gpu]
    if machine.share == 1:
        return gpu
    return replace(
        gpu,
        name=machine.name,
        product=f"{gpu.product}, {machine.share} of its memory",
        memory_bytes=int(gpu.memory_bytes * machine.share),
    )


def describe_machine(text: str) -> str:
    """Say how many GPUs a cloud's machine has; nothing if a text does not name one."""
    machine = None if text in CATALOGUE else find_machine(text)
    return machine.note if machine else ""


def find_product(label: str) -> GpuSpec | None:
    """Return the GPU that NVIDIA's tools call this, None if the catalogue does not have it.

    Labels of Kubernetes nodes write ``-`` for spaces. Variants of a card (PCIe, SXM) count as one
    unless they have entries of their own, and so does a card that jobs share by taking turns: each
    sees all of its memory. The amount may be left out if only one card has the name.
    """
    found = find_products(label)
    return found[0] if len(found) == 1 else None


def find_products(label: str) -> tuple[GpuSpec, ...]:
    """Return the GPUs that a label may mean: several if it leaves out which memory they have."""
    same = _with_words(label)
    like = tuple(
        gpu
        for gpu in CATALOGUE.values()
        if _without_memory(_essence(gpu.product, gpu)) == _essence(label, gpu)
    )
    return same[:1] or like


def _with_words(text: str) -> tuple[GpuSpec, ...]:
    """Return the GPUs whose product has the same words; those that need fewer left out first."""
    found = [
        gpu
        for gpu in CATALOGUE.values()
        if (wanted := _essence(text, gpu)) and wanted == _essence(gpu.product, gpu)
    ]
    most = max((len(_essence(text, gpu)) for gpu in found), default=0)
    return tuple(gpu for gpu in found if len(_essence(text, gpu)) == most)


def _find_similar(name: str) -> tuple[str, ...]:
    """Return names that may have been meant: cards with all of its words first, then like ones."""
    wanted = _without_memory(_words(name) - _VARIANTS)
    more = {gpu.name: _words(gpu.product) - _VARIANTS for gpu in CATALOGUE.values()}
    fuller = [one for one, words in more.items() if wanted and wanted < words]
    start = loosen(name)
    fuller.sort(key=lambda one: (not loosen(one).startswith(start), len(more[one]), len(one)))
    spellings = {one: gpu.name for gpu in CATALOGUE.values() for one in _spellings(gpu)}
    like = [spellings[one] for one in find_near(name, spellings, limit=_MAX_NEAR)]
    return tuple(dict.fromkeys([*fuller, *like]))[:_MAX_NEAR]


def _spellings(gpu: GpuSpec) -> Iterable[str]:
    """Return what a person may have tried to write."""
    return gpu.name, gpu.name.removeprefix("rtx-"), gpu.product, gpu.product.removeprefix("NVIDIA ")


def _ambiguous(name: str, found: Sequence[GpuSpec]) -> Mistake:
    sizes = ", ".join(f"{gpu.name} ({format_size(gpu.memory_bytes)})" for gpu in found)
    return Mistake(
        field="gpu",
        value=show_value(name),
        rule="more than one GPU of the catalogue is called that",
        next_step=f"write one of: {sizes}",
        near=tuple(gpu.name for gpu in found),
    )


def _foreign(name: str, meaning: str) -> Mistake:
    return Mistake(
        field="gpu",
        value=show_value(name),
        rule=meaning,
        next_step=f"memgate answers for NVIDIA's GPUs: {_LISTED}",
    )


def _attached(name: str) -> Mistake:
    return Mistake(
        field="gpu",
        value=show_value(name),
        rule="this machine type has whatever GPU is attached to it",
        next_step="name the GPU: t4, v100-16, p100-16",
        near=("t4", "v100-16", "p100-16"),
    )


#: how NVIDIA's own product names begin
_VENDORS = re.compile("nvidia|tesla|geforce|quadro", re.IGNORECASE)

#: what distinguishes cards of one name, besides their memory: it changes none of our figures,
#: except where the catalogue has an entry that is called that
_VARIANTS = frozenset({"nvidia", "tesla", "geforce", "pcie", "sxm2", "sxm3", "sxm4", "sxm5", "sxm"})
_VARIANTS |= frozenset({"sxm6", "ac", "hbm2", "hbm2e", "hbm3", "hbm3e", "shared"})
#: editions of the RTX PRO 6000
_VARIANTS |= frozenset({"blackwell", "workstation", "server", "max", "q", "edition"})
#: from clouds' own names: a faster network, and the memory of the only card that has so much
_VARIANTS |= frozenset({"mega", "141gb"})


#: a GH200 is called by the memory of its CPU, which changes none of our figures
_SYNONYMS = {"120gb": "480gb"}


def _card(gpu: GpuSpec) -> frozenset[str]:
    """Return the words of a catalogue name without the memory: a100 for a100-80."""
    words = gpu.name.split("-")
    return frozenset(words[:-1] if words[-1].isdecimal() and len(words[-1]) < 4 else words)


def _essence(text: str, gpu: GpuSpec) -> frozenset[str]:
    """Return the words of a name that tell a GPU from others."""
    return _words(text) - (_VARIANTS - frozenset(gpu.name.split("-")))


def _words(text: str) -> frozenset[str]:
    words = re.split(r"[^a-z0-9.]+", text.lower())
    return frozenset(_SYNONYMS.get(word, word) for word in words) - {""}


def _without_memory(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if re.fullmatch(r"\d+gb", word) is None)
