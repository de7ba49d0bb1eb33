"""The catalogue of GPUs."""

from __future__ import annotations

import re

import pytest

from memgate.errors import InputError, UnknownGpuError, UnsupportedGpuError
from memgate.gpus import (
    CATALOGUE,
    GpuRequest,
    find_gpu,
    find_product,
    find_reports,
    list_gpus,
    parse_gpu,
)
from memgate.gpus.foreign import find_foreign
from memgate.units import GIB


def test_a_gpu_is_found_by_name() -> None:
    """Names are those of the contract."""
    gpu = find_gpu("a100-40")

    assert gpu.compute_capability == (8, 0)
    assert gpu.memory_bytes == 42298834944


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("rtx3060", "rtx-3060"),
        ("RTX 3060", "rtx-3060"),
        ("GeForce RTX 3060", "rtx-3060"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40"),
        ("A100 80GB PCIe", "a100-80"),
        ("a100-40gb", "a100-40"),
        ("A100 80", "a100-80"),
        ("Tesla T4", "t4"),
        ("V100-32GB", "v100-32"),
        ("p100", "p100-16"),
        ("NVIDIA H100 NVL", "h100-94"),
        ("A100-SXM4-80GB MIG 1g.10gb", "a100-80-1g.10gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.10gb", "a100-40-1g.10gb"),
        ("H100 PCIe", "h100-pcie"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("GeForce RTX 3080", "rtx-3080"),
        ("RTX 3080 12GB", "rtx-3080-12"),
        ("RTX 4060 Ti 16GB", "rtx-4060-ti-16"),
        ("TITAN RTX", "titan-rtx"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("NVIDIA GH200 120GB", "gh200-96"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144"),
        ("NVIDIA-A800-SXM4-80GB", "a800-80"),
        ("Tesla V100S-PCIE-32GB", "v100s-32"),
        ("NVIDIA B300 SXM6 AC", "b300"),
    ],
)
def test_a_gpu_is_understood_in_other_spellings(text: str, want: str) -> None:
    """As NVIDIA's tools call it, as people write it, and without the memory where that is clear."""
    assert find_gpu(text).name == want
    assert GpuRequest(name=text) == GpuRequest(name=want)


@pytest.mark.parametrize("product", sorted({gpu.product for gpu in CATALOGUE.values()}))
def test_every_product_name_means_its_own_card(product: str) -> None:
    """No name of the catalogue is taken for another."""
    assert find_gpu(product).product == product


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a100", ("a100-40", "a100-80")),
        ("A100", ("a100-40", "a100-80")),
        ("v100", ("v100-16", "v100-32")),
        ("h100", ("h100-80", "h100-94")),
        ("gh200", ("gh200-96", "gh200-144")),
        ("RTX 4060 Ti", ("rtx-4060-ti-8", "rtx-4060-ti-16")),
        ("NVIDIA GeForce RTX 4060 Ti", ("rtx-4060-ti-8", "rtx-4060-ti-16")),
    ],
)
def test_a_name_of_two_cards_is_answered_with_both(text: str, want: tuple[str, ...]) -> None:
    """Nobody guesses how much memory is meant."""
    with pytest.raises(UnknownGpuError, match="more than one GPU of the catalogue") as raised:
        find_gpu(text)

    assert raised.value.mistakes[0].near == want
    assert all(name in raised.value.message for name in want)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("rtx-3061", "rtx-3060"),
        ("3060", "rtx-3060"),
        ("rtx-2080", "rtx-2080-ti"),
        ("h2000", "h200"),
        ("RTX 6000", "rtx-6000-ada"),
        ("A6000", "rtx-a6000"),
        ("h100 64gb", "h100-80"),
        ("titan", "titan-v"),
        ("gtx 1080", "gtx-1080-ti"),
    ],
)
def test_another_card_is_suggested_and_never_taken(text: str, near: str) -> None:
    """An RTX 2080 has less memory than a 2080 Ti: an answer for that would be wrong."""
    with pytest.raises(UnknownGpuError, match="it is not in the catalogue; did you") as raised:
        find_gpu(text)

    assert raised.value.mistakes[0].near[0] == near


@pytest.mark.parametrize("text", ["", "abacus", "x" * 5000])
def test_a_gpu_that_is_like_none_may_be_described(text: str) -> None:
    """The next step is in the message, and the message is short."""
    with pytest.raises(UnknownGpuError, match=r'describe it as {"memory_bytes"') as raised:
        find_gpu(text)

    assert len(raised.value.message) < 300


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_is_plausible(name: str) -> None:
    """Slips of a digit do not survive."""
    gpu = CATALOGUE[name]

    assert 4 * GIB < gpu.memory_bytes < 280 * GIB
    assert (6, 0) <= gpu.compute_capability <= (12, 0)
    assert 10 <= gpu.multiprocessors <= 200


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_memory_of_an_entry_is_the_lowest_that_was_reported(name: str) -> None:
    """With its source, and the highest: a tenth is what ECC takes, and the driver."""
    gpu, reports = CATALOGUE[name], find_reports(CATALOGUE[name])

    assert reports.source
    assert reports.lowest_bytes <= gpu.memory_bytes <= reports.highest_bytes
    assert reports.highest_bytes < 1.12 * reports.lowest_bytes
    if name != "l40s":  # its figure is that of the first release
        assert reports.lowest_bytes == gpu.memory_bytes


def test_a_size_that_is_told_by_the_name_is_about_right() -> None:
    """A slip of a row does not survive: a100-40 has about 40 GB, 3g.20gb about 20."""
    for name, gpu in CATALOGUE.items():
        told = re.search(r"(?:-|\.)(\d+)(?:gb)?$", name)
        if told and int(told[1]) < 400 and name.count("-"):
            assert 0.85 < gpu.memory_bytes / GIB / int(told[1]) < 1.02, name


def test_the_catalogue_is_listed_the_smallest_first() -> None:
    """In one order everywhere."""
    sizes = [gpu.memory_bytes for gpu in list_gpus()]

    assert sizes == sorted(sizes)
    assert len(sizes) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("MI300X", "AMD"),
        ("AMD Instinct MI250X", "AMD"),
        ("mi-50", "AMD"),
        ("gfx942", "AMD"),
        ("Radeon RX 7900 XTX", "AMD"),
        ("BM.GPU.MI300X.8", "AMD"),
        ("Intel Data Center GPU Max 1550", "Intel GPU"),
        ("Arc A770", "Intel GPU"),
        ("Apple M2 Max", "Apple"),
        ("m1", "Apple"),
        ("TPU v4", "TPU"),
        ("v5litepod-8", "TPU"),
        ("Gaudi2", "Gaudi"),
        ("trn1.32xlarge", "AWS"),
        ("Ascend 910B", "Ascend"),
    ],
)
def test_gpus_of_others_are_refused_by_name(text: str, want: str) -> None:
    """With what that means; no NVIDIA card is suggested, since its answer would be wrong."""
    with pytest.raises(UnsupportedGpuError, match="not modelled") as raised:
        find_gpu(text)

    assert want in raised.value.message
    assert raised.value.code == "UNSUPPORTED_GPU"
    assert raised.value.mistakes[0].near == ()


@pytest.mark.parametrize("text", ["NVIDIA M40", "m40", "max-q", "v100", "NVIDIA TPU", "rtx-910"])
def test_what_may_be_a_card_of_nvidia_is_not_refused_as_anothers(text: str) -> None:
    """It is unknown, or known."""
    assert not find_foreign(text)


@pytest.mark.parametrize(
    ("memory_gib", "capability", "want"),
    [(39, "8.0", 108), (10, "8.0", 14), (92, "9.0", 132), (23, "8.0", 56)],
)
def test_a_described_gpu_is_like_a_whole_one_of_its_size(
    memory_gib: int, capability: str, want: int
) -> None:
    """Or like a part of one, if none is of about that size."""
    asked = {"memory_bytes": memory_gib * GIB, "compute_capability": capability}

    assert parse_gpu(asked).gpu.multiprocessors == want


def test_a_gpu_may_be_described() -> None:
    """Memory and capability are said; the rest is taken from the most similar of the catalogue."""
    asked = {"memory_bytes": 10 * GIB, "compute_capability": "8.6", "already_used_bytes": GIB}

    target = parse_gpu(asked)

    assert target.gpu.memory_bytes == 10 * GIB
    assert target.gpu.compute_capability == (8, 6)
    assert target.gpu.multiprocessors == CATALOGUE["rtx-3080"].multiprocessors
    assert (target.already_used_bytes, target.count) == (GIB, 1)


def test_a_small_gpu_is_named_by_its_size() -> None:
    """Not as one of 0.0 GiB."""
    assert parse_gpu({"memory_bytes": 5, "compute_capability": "8.6"}).gpu.name == (
        "GPU (5 bytes, 8.6)"
    )


def test_a_gpu_of_the_catalogue_may_be_shared() -> None:
    """By name alone, or with what others use of it."""
    assert parse_gpu("t4").gpu is CATALOGUE["t4"]
    assert parse_gpu({"name": "t4", "already_used_bytes": 5, "count": 2}).already_used_bytes == 5


@pytest.mark.parametrize(
    ("document", "want_message"),
    [
        ({"memory_bytes": 5}, "give either 'name', or 'memory_bytes' and 'compute_capability'"),
        ({"name": "t4", "memory_bytes": 5, "compute_capability": "8.6"}, "give either 'name', or"),
        ({}, "give either 'name', or"),
        ({"name": "t4", "count": 0}, "count is 0"),
        ({"name": "t4", "count": "2"}, "count is '2': it must be a whole number; write it without"),
        ({"memory_bytes": 5, "compute_capability": "8"}, "'8': a compute capability is a major"),
        ({"name": "t4", "size": 0}, "size is 0: there is no such field"),
        ({"name": "t5"}, "gpu is 't5': it is not in the catalogue"),
        (7, "the whole is 7"),
    ],
)
def test_a_gpu_that_makes_no_sense_is_a_sentence(document: object, want_message: str) -> None:
    """The field, the value, the rule."""
    with pytest.raises(InputError) as raised:
        parse_gpu(document)

    assert want_message in raised.value.message


@pytest.mark.parametrize(
    ("name", "want"),
    [("p100-16", "6.0"), ("v100-16", "7.0"), ("t4", "7.5"), ("rtx-3060", "8"), ("h200", "9")],
)
def test_a_generation_runs_the_same_kernels(name: str, want: str) -> None:
    """Up to Turing the minor number counts, from Ampere on it does not."""
    assert CATALOGUE[name].generation == want


@pytest.mark.parametrize(
    ("gpu", "architectures", "want"),
    [
        ("t4", (), True),
        ("t4", ("sm_75", "sm_80"), True),
        ("v100-32", ("sm_75", "sm_80"), False),
        ("rtx-4060", ("sm_80",), True),
        ("h100-80", ("sm_80",), False),
        ("h100-80", ("sm_70", "compute_80"), True),
        ("t4", ("compute_80",), False),
        ("h100-80", ("sm_90a",), True),
        ("rtx-4060", ("sm_86a",), False),
        ("rtx-4060", ("sm_100", "sm_120"), False),
        ("t4", ("gfx90a",), False),
    ],
)
def test_a_pytorch_runs_where_it_was_built_for(
    gpu: str, architectures: tuple[str, ...], want: bool
) -> None:
    """Machine code within a major capability, translated code on all later ones."""
    assert CATALOGUE[gpu].has_kernels(architectures) is want


@pytest.mark.parametrize(
    ("label", "want"),
    [
        ("NVIDIA-A10", "a10"),
        ("NVIDIA-A10G-SHARED", "a10g"),
        ("NVIDIA-L40", "l40"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-H100", "h100-80"),
        ("NVIDIA-RTX-A5000", "rtx-a5000"),
        ("NVIDIA-RTX-6000-Ada-Generation", "rtx-6000-ada"),
        ("Quadro-RTX-6000", "quadro-rtx-6000"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", "rtx-pro-6000"),
        ("NVIDIA-GH200-480GB", "gh200-96"),
        ("NVIDIA-H200-MIG-1g.18gb", "h200-1g.18gb"),
        ("NVIDIA-GeForce-RTX-4060-Ti", None),
        ("NVIDIA-RTX-6000", None),
        ("NVIDIA-H100-NVL", "h100-94"),
        ("NVIDIA-A100-SXM4-80GB-MIG-2g.20gb", "a100-80-2g.20gb"),
        ("NVIDIA-GeForce-RTX-3080", "rtx-3080"),
        ("NVIDIA-GeForce-RTX-3080-Ti", "rtx-3080-ti"),
        ("NVIDIA-GeForce-RTX-2080", None),
    ],
)
def test_cards_of_like_names_are_told_apart(label: str, want: str | None) -> None:
    """As NVIDIA's feature discovery labels nodes; what is not there is not guessed."""
    gpu = find_product(label)

    assert (gpu.name if gpu else None) == want
