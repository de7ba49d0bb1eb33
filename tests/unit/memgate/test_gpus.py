"""The catalogue of GPUs."""

from __future__ import annotations

import pytest

from memgate.errors import InputError, UnknownGpuError
from memgate.gpus import CATALOGUE, GpuRequest, find_gpu, find_product, parse_gpu
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
        ("h20", "h200"),
        ("RTX 6000", "rtx-6000-ada"),
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
    with pytest.raises(UnknownGpuError, match=r"describe it, as \{") as raised:
        find_gpu(text)

    assert len(raised.value.message) < 300


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_is_plausible(name: str) -> None:
    """Slips of a digit do not survive."""
    gpu = CATALOGUE[name]

    assert 7 * GIB < gpu.memory_bytes < 200 * GIB
    assert (6, 0) <= gpu.compute_capability <= (12, 0)
    assert 14 <= gpu.multiprocessors <= 200


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
        ("NVIDIA-H100-PCIe", "h100-80"),
        ("NVIDIA-H100-NVL", "h100-94"),
        ("NVIDIA-A100-SXM4-80GB-MIG-2g.20gb", "a100-80-2g.20gb"),
        ("NVIDIA-GeForce-RTX-3080", "rtx-3080"),
        ("NVIDIA-GeForce-RTX-3080-Ti", None),
    ],
)
def test_cards_of_like_names_are_told_apart(label: str, want: str | None) -> None:
    """As NVIDIA's feature discovery labels nodes; what is not there is not guessed."""
    gpu = find_product(label)

    assert (gpu.name if gpu else None) == want
